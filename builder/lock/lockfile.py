"""The lock on disk: written whole, read strictly, refused when it answers another question than the recipe asks."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import yaml

from builder.document import canonical_yaml, key_of, sha256_bytes, write_together
from builder.errors import InvalidDocumentError, ResolveError, StaleLockError
from builder.lock.conflict import UnsatisfiableError
from builder.lock.debian import BASE_PACKAGES, TOOLCHAIN_PACKAGES, resolve_debian
from builder.lock.index import refuse_unreachable
from builder.lock.model import Lock, LockFile
from builder.lock.pylock import read_pylock, write_pylock
from builder.lock.python import (
    python_question,
    requirements_of,
    resolve_wheels,
    separate_compiler,
    toolchain_requirements,
)
from builder.lock.refusal import placed
from builder.lock.sources import local_projects, locked_source, source_declarations
from builder.lock.update import Update
from builder.lock.wish import wishes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from builder.lock.model import DebianLock, LockedWheel
    from builder.lock.project import Project
    from builder.recipe.model import Recipe
    from builder.recipe.source import RecipeFile
    from builder.settings import Settings
    from builder.store import Store

LOCK = "lock.yaml"
PYLOCK = "pylock.toml"
TOOLCHAIN = "pylock.toolchain.toml"
COMPILER = "pylock.compiler.toml"
NOTHING = Update()


def question_of(source: RecipeFile) -> dict[str, Any]:
    """Return what the lock of a recipe answers, as plain data: equal questions have equal answers."""
    recipe = source.recipe
    if recipe.base.debian is None:
        raise ResolveError(
            f"{source.path}: base.image: only a bootstrapped Debian base can be locked so far",
            remedy="write `base: {debian: trixie}`",
        )
    compiled = any(package.from_source for package in recipe.stack.values())
    return {
        "debian": {
            "suite": recipe.base.debian,
            "base": sorted({*BASE_PACKAGES, *recipe.base.packages}),
            "toolchain": sorted(TOOLCHAIN_PACKAGES) if compiled else [],
        },
        "python": python_question(recipe, source.folder),
    }


def read_lock(folder: Path, name: str) -> Lock | None:
    """Return the lock in a folder, or None where there is none; a damaged or torn lock is an InvalidDocumentError."""

    def read(file: str) -> bytes | None:
        try:
            return (folder / file).read_bytes()
        except FileNotFoundError:
            return None

    return parse_lock(read, place=str(folder), name=name)


def parse_lock(read: Callable[[str], bytes | None], *, place: str, name: str) -> Lock | None:
    """Return the lock whose files `read` gives by name (None: no such file); `place` names their folder in errors."""
    data = read(LOCK)
    if data is None:
        return None
    try:
        plain = yaml.load(data, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise InvalidDocumentError(f"{place}/{LOCK}: {str(error).splitlines()[0]}", remedy=_RELOCK) from None
    file = LockFile.from_json(json.dumps(plain, default=str), source=f"{place}/{LOCK}")
    pylocks = {name: _proven(read(name), expected, f"{place}/{name}") for name, expected in file.python.items()}
    wheels = {name: read_pylock(text, source=f"{place}/{name}") for name, text in pylocks.items()}
    return Lock(
        name=name,
        file=file,
        wheels=wheels.get(PYLOCK, ()),
        toolchain_wheels=wheels.get(TOOLCHAIN, ()),
        compiler_wheels=wheels.get(COMPILER, ()),
        digest=key_of(file.to_plain()),
        pylocks=pylocks,
    )


_RELOCK = "run `envbuild lock RECIPE`"


def _proven(content: bytes | None, expected: str, source: str) -> bytes:
    if content is None:
        raise InvalidDocumentError(f"{source}: missing, though {LOCK} names it", remedy=_RELOCK)
    if sha256_bytes(content) != expected:
        raise InvalidDocumentError(
            f"{source}: not the file that {LOCK} was written with",
            remedy="restore both from version control, or run `envbuild lock RECIPE`",
        )
    return content


def current_lock(source: RecipeFile, folder: Path) -> Lock:
    """Return the lock of a recipe; raise StaleLockError, naming the changed fields, if it answers another question."""
    lock = read_lock(folder, source.recipe.name)
    if lock is None:
        raise StaleLockError(f"{source.path}: there is no lock in {folder}")
    changed = changed_fields(lock.file.question, question_of(source))
    if changed:
        raise StaleLockError(f"{source.path}: the lock in {folder} is stale: changed since: {', '.join(changed)}")
    return lock


def changed_fields(old: Any, new: Any, path: str = "") -> tuple[str, ...]:  # noqa: ANN401 - JSON values
    """Return the dotted paths at which two plain values differ, each with the old and the new value."""
    if isinstance(old, dict) and isinstance(new, dict):
        return tuple(
            change
            for key in sorted({*old, *new})
            for change in changed_fields(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
        )
    return () if old == new else (f"{path} ({_shown(old)} -> {_shown(new)})",)


def _shown(value: Any) -> str:  # noqa: ANN401 - JSON values
    text = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


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


def write_lock(folder: Path, files: dict[str, bytes]) -> None:
    """Write the files of a lock together, `lock.yaml` last: a lock torn by a crash is noticed, never believed."""
    write_together({folder / name: files[name] for name in sorted(files, key=lambda name: name == LOCK)})
    for name in {TOOLCHAIN, COMPILER} - {*files}:
        (folder / name).unlink(missing_ok=True)
