"""Writing a lock: at every moment, and after a crash at any, its folder holds the old lock whole or the new one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
from typing import TYPE_CHECKING

from builder.document import write_atomic
from builder.errors import UsageError, unwritten
from builder.lock.lockfile import COMPILER, LOCK, PYLOCK, TOOLCHAIN
from builder.places import obstacle
from builder.store import is_running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OWN = frozenset({LOCK, PYLOCK, TOOLCHAIN, COMPILER})
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h; man 2 renameat2


def write_lock(folder: Path, files: dict[str, bytes]) -> None:
    """Write the files of a lock into a folder; what else is there (the verdict) stays.

    The new files are made in a folder beside it, and the two change places in one step. Where the file system cannot do
    that, they are written one by one, `lock.yaml` last: a lock that is torn then is noticed, never believed.
    """
    place = folder.resolve()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _beside(place) as made:
            if place.is_dir():
                kept = shutil.ignore_patterns(*OWN)
                shutil.copytree(place, made, copy_function=_link, ignore=kept, dirs_exist_ok=True)
            order = sorted(files, key=lambda name: name == LOCK)
            for name in order:
                write_atomic(made / name, files[name])
            if not place.is_dir():
                made.rename(place)
            elif not exchange(made, place):
                _move(order, made, place)
    except OSError as error:
        raise unwritten(
            error,
            f"the lock in {folder} cannot be written: {error.strerror}; what was there is whole",
            remedy="make room on its disk, or make the folder writable",
        ) from error


def refuse_unwritable(folder: Path) -> None:
    """Raise UsageError if a lock cannot be written into a folder, before any work is done for it."""
    if why := obstacle(folder) or obstacle(folder.parent):
        raise UsageError(f"the lock in {folder} cannot be written: {why}", remedy="make the folder writable")


def exchange(one: Path, other: Path) -> bool:
    """Let two paths change places in one step; say whether the system and the file system could."""
    try:
        swap = ctypes.CDLL(None).renameat2
    except AttributeError:  # a C library without it
        return False
    names = os.fsencode(one), os.fsencode(other)
    return bool(swap(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)


@contextlib.contextmanager
def _beside(place: Path) -> Iterator[Path]:
    """Give a folder beside `place`, removed at the end, and remove those that killed processes left."""
    prefix = f".{place.name}."
    for path in place.parent.glob(f"{prefix}*-*"):
        owner = path.name.removeprefix(prefix).partition("-")[0]
        if owner.isdigit() and not is_running(int(owner)):
            shutil.rmtree(path, ignore_errors=True)
    folder = place.parent / tempfile.mkdtemp(dir=place.parent, prefix=f"{prefix}{os.getpid()}-")
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(names: list[str], made: Path, place: Path) -> None:
    for name in names:
        (made / name).replace(place / name)
    for name in OWN - {*names}:
        (place / name).unlink(missing_ok=True)


def _link(source: str, target: str) -> None:
    """Keep a file of the folder as it is: files are never changed in place, so both folders may share it."""
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)
