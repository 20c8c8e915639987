"""Recipe -> the files of its lock: every world resolved, side by side where that saves time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from builder.document import canonical_yaml, sha256_bytes
from builder.lock.conflict import UnsatisfiableError
from builder.lock.debian import resolve_debian
from builder.lock.index import refuse_unreachable
from builder.lock.lockfile import COMPILER, LOCK, PYLOCK, TOOLCHAIN
from builder.lock.model import LockFile
from builder.lock.project import local_projects
from builder.lock.pylock import write_pylock
from builder.lock.python import resolve_wheels
from builder.lock.question import question_of
from builder.lock.refusal import placed
from builder.lock.requirements import requirements_of, separate_compiler, toolchain_requirements
from builder.lock.sources import locked_source, source_declarations
from builder.lock.update import Update
from builder.lock.wish import wishes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.lock.model import DebianLock, Lock, LockedWheel
    from builder.lock.project import Project
    from builder.recipe.model import Recipe
    from builder.recipe.source import RecipeFile
    from builder.settings import Settings
    from builder.store import Store

NOTHING = Update()


def resolve_lock(
    source: RecipeFile, previous: Lock | None, store: Store, settings: Settings, update: Update = NOTHING
) -> dict[str, bytes]:
    """Resolve every world of the recipe and return the files of the lock; no file of the lock is written yet.

    Versions of the `previous` lock are kept where the recipe still allows them, but for those that `update` lets go.
    Debian's packages are kept together or, where the recipe asks for others, chosen anew together.
    """
    question = question_of(source)
    refuse_unreachable(source.recipe, settings)
    with ThreadPoolExecutor(1) as pool:  # Debian's resolver is another program: it works beside uv
        kept, worlds = _kept_debian(question["debian"], previous, update), question["debian"]
        debian = pool.submit(
            lambda: kept or resolve_debian(worlds["suite"], worlds["base"], worlds["toolchain"], store, settings)
        )
        sources = {wish.name: (wish, locked_source(wish)) for wish in wishes_of(source, store, settings)}
        projects = {
            **{name: source_declarations(locked, wish) for name, (wish, locked) in sources.items()},
            **local_projects(source.recipe, source.folder),
        }
        try:
            files = _python_files(source.recipe, projects, _wheels_before(previous, update), store, settings)
        except UnsatisfiableError as error:
            raise placed(error, source, projects) from error
        file = LockFile(
            question=question,
            debian=debian.result(),
            python={name: sha256_bytes(content) for name, content in files.items()},
            sources=tuple(locked for _, locked in sources.values()) or None,
            tools={"uv": version("uv")},
        )
    return {**files, LOCK: canonical_yaml(file.to_plain())}


def _kept_debian(asked: dict[str, Any], previous: Lock | None, update: Update) -> DebianLock | None:
    if previous is None or update.moves_debian or previous.file.question.get("debian") != asked:
        return None
    return previous.file.debian


def _python_files(
    recipe: Recipe,
    projects: Mapping[str, Project],
    before: Mapping[str, tuple[LockedWheel, ...]],
    store: Store,
    settings: Settings,
) -> dict[str, bytes]:
    wished = {
        PYLOCK: requirements_of(recipe, projects),
        TOOLCHAIN: toolchain_requirements(recipe, projects),
        COMPILER: separate_compiler(recipe, projects),
    }
    asked = {name: lines for name, lines in wished.items() if lines or name == PYLOCK}
    with ThreadPoolExecutor(len(asked)) as pool:  # uv waits for the index most of the time
        found = {
            name: pool.submit(resolve_wheels, recipe, lines, store, settings, preferred=before[name])
            for name, lines in asked.items()
        }
    return {name: write_pylock(wheels.result(), python=recipe.python) for name, wheels in found.items()}


def _wheels_before(previous: Lock | None, update: Update) -> dict[str, tuple[LockedWheel, ...]]:
    if previous is None:
        return dict.fromkeys((PYLOCK, TOOLCHAIN, COMPILER), ())
    wheels = {PYLOCK: previous.wheels, TOOLCHAIN: previous.toolchain_wheels, COMPILER: previous.compiler_wheels}
    return {name: update.kept(before) for name, before in wheels.items()}
