"""Recipe -> the files of its lock: every world resolved, side by side where that saves time."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

from builder.beside import Beside
from builder.document import canonical_yaml, sha256_bytes
from builder.lock.conflict import UnsatisfiableError
from builder.lock.debian import resolve_debian
from builder.lock.image_base import resolve_image
from builder.lock.index import configured_index, refuse_unreachable
from builder.lock.lockfile import COMPILER, LOCK, PYLOCK, TOOLCHAIN
from builder.lock.model import LockFile
from builder.lock.project import local_projects
from builder.lock.pylock import write_pylock
from builder.lock.python import refuse_contradictions, resolve_wheels
from builder.lock.question import question_of
from builder.lock.refusal import placed
from builder.lock.requirements import (
    absent_packages,
    built_packages,
    requirements_of,
    separate_compiler,
    toolchain_requirements,
)
from builder.lock.sources import guessed_projects, locked_source, source_declarations
from builder.lock.update import Update
from builder.lock.wish import wishes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from builder.lock.model import DebianLock, Lock, LockedImage, LockedWheel
    from builder.lock.project import Project
    from builder.recipe.model import Recipe
    from builder.recipe.source import RecipeFile
    from builder.settings import Settings
    from builder.store import Store

T = TypeVar("T")
NOTHING = Update()


def resolve_lock(
    source: RecipeFile, previous: Lock | None, store: Store, settings: Settings, update: Update = NOTHING
) -> dict[str, bytes]:
    """Resolve every world of the recipe and return the files of the lock; no file of the lock is written yet.

    Versions of the `previous` lock are kept where the recipe still allows them, but for those that `update` lets go.
    Debian's packages are kept together or, where the recipe asks for others, chosen anew together.
    """
    question, recipe = question_of(source), source.recipe
    refuse_contradictions(source)
    configured_index(settings)  # a wrong setting is said before anything begins
    refuse_unreachable(recipe, settings)
    with Beside() as beside:  # Debian's resolver and uv are other programs, and all wait for the network
        base = _image(recipe, previous, update, store, settings)
        debian = beside.start(lambda: _debian(question.get("debian"), previous, update, store, settings))
        before = _wheels_before(previous, update)
        asked = _Asked(
            lambda name, lines: resolve_wheels(
                recipe,
                lines,
                store,
                settings,
                base=base,
                preferred=before[name],
                overruled=name != COMPILER,  # it is made of what `cuda` asks for and of nothing else
                absent=absent_packages(recipe) if name == PYLOCK else (),  # what compiles is asked for by envbuild
            ),
            beside,
        )
        local = local_projects(source)
        guessed = {**guessed_projects(recipe), **local}
        if len(guessed) == len(built_packages(recipe)):
            _begin(recipe, guessed, asked)
        wishes = {wish.name: wish for wish in wishes_of(source, store, settings)}
        sources = _results({name: beside.start(partial(locked_source, wish)) for name, wish in wishes.items()})
        projects = {**{name: source_declarations(sources[name], wish) for name, wish in wishes.items()}, **local}
        try:
            wheels = _results(_begin(recipe, projects, asked))
        except UnsatisfiableError as error:
            raise placed(error, source, projects) from error
        files = {name: write_pylock(found, python=recipe.python) for name, found in wheels.items()}
        file = LockFile(
            question=question,
            debian=debian.result(),
            base=base,
            python={name: sha256_bytes(content) for name, content in files.items()},
            sources=tuple(sources.values()) or None,
            tools={"uv": version("uv")},
        )
    return {**files, LOCK: canonical_yaml(file.to_plain())}


class _Asked:
    """The questions about wheels that are under way: one asked again has the answer of the first time."""

    def __init__(self, resolve: Callable[[str, tuple[str, ...]], tuple[LockedWheel, ...]], beside: Beside) -> None:
        self._resolve = resolve
        self._beside = beside
        self._asked: dict[tuple[str, tuple[str, ...]], Future[tuple[LockedWheel, ...]]] = {}

    def wheels(self, name: str, lines: tuple[str, ...]) -> Future[tuple[LockedWheel, ...]]:
        """Begin to resolve the requirements of one file of the lock, if that has not begun before."""
        if (name, lines) not in self._asked:
            self._asked[name, lines] = self._beside.start(partial(self._resolve, name, lines))
        return self._asked[name, lines]


def _results(begun: Mapping[str, Future[T]]) -> dict[str, T]:
    return {name: future.result() for name, future in begun.items()}


def _image(
    recipe: Recipe, previous: Lock | None, update: Update, store: Store, settings: Settings
) -> LockedImage | None:
    """Return the base image, the locked one as long as the recipe names the same and nobody asks to move it."""
    if recipe.base.image is None:
        return None
    if previous is not None and not update.moves_base:
        same = previous.file.question.get("base") == {"image": recipe.base.image}
        if same and previous.file.question["python"]["python"] == recipe.python:
            return previous.file.base
    return resolve_image(recipe.base.image, recipe.python, store, settings)


def _debian(
    asked: dict[str, Any] | None, previous: Lock | None, update: Update, store: Store, settings: Settings
) -> DebianLock | None:
    if asked is None:
        return None
    if previous is None or update.moves_debian or previous.file.question.get("debian") != asked:
        return resolve_debian(asked["suite"], asked["base"], asked["toolchain"], store, settings)
    return previous.file.debian


def _begin(
    recipe: Recipe, projects: Mapping[str, Project], asked: _Asked
) -> dict[str, Future[tuple[LockedWheel, ...]]]:
    """Begin to resolve each file of the lock that the recipe needs, its sources being what `projects` declare."""
    wished = {
        PYLOCK: requirements_of(recipe, projects),
        TOOLCHAIN: toolchain_requirements(recipe, projects),
        COMPILER: separate_compiler(recipe, projects),
    }
    return {name: asked.wheels(name, lines) for name, lines in wished.items() if lines or name == PYLOCK}


def _wheels_before(previous: Lock | None, update: Update) -> dict[str, tuple[LockedWheel, ...]]:
    if previous is None:
        return dict.fromkeys((PYLOCK, TOOLCHAIN, COMPILER), ())
    wheels = {PYLOCK: previous.wheels, TOOLCHAIN: previous.toolchain_wheels, COMPILER: previous.compiler_wheels}
    return {name: update.kept(before) for name, before in wheels.items()}
