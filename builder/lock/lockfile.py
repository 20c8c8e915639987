"""The lock on disk: read strictly, refused when it answers another question than the recipe asks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from builder.document import key_of, read_yaml_bytes, sha256_bytes
from builder.errors import InvalidDocumentError, StaleLockError
from builder.lock.model import Lock, LockFile
from builder.lock.pylock import read_pylock
from builder.lock.question import changed_fields, question_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.recipe.source import RecipeFile

LOCK = "lock.yaml"
PYLOCK = "pylock.toml"
TOOLCHAIN = "pylock.toolchain.toml"
COMPILER = "pylock.compiler.toml"


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
    plain = read_yaml_bytes(data, source=f"{place}/{LOCK}", remedy=_RELOCK)
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
