"""Files on their way out of the store: written as a folder or as a tar, complete or not at all."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.errors import BuildFailedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CLOCK = 315532800  # 1980-01-01, as in build contexts: equal parcels are equal bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One file of a parcel: its name below the parcel's root, and its bytes or the file of this machine with them."""

    name: str
    content: Path | bytes
    mode: Literal[0o644, 0o755] = 0o644


def write_folder(items: Iterable[Item], folder: Path, *, link: bool = False) -> None:
    """Write a parcel as a new folder, or into an empty one; `link` makes hard links (only where nobody edits them).

    Raises UsageError if the folder holds something, BuildFailedError if the disk refuses.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder", remedy="name a folder that does not exist yet")
    with _unfinished(folder) as unfinished:
        unfinished.mkdir()
        put_files(items, unfinished, link=link)
        if folder.exists():
            folder.rmdir()
        unfinished.rename(folder)


def put_files(items: Iterable[Item], folder: Path, *, link: bool = False) -> None:
    """Write the files of a parcel into a folder, each in place of what has its name."""
    for item in items:
        target = folder / item.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        _put(item, target, link=link)


def write_tar(items: Iterable[Item], path: Path) -> None:
    """Write a parcel as an uncompressed tar below one folder, named as the file is; equal parcels give equal bytes."""
    root = path.name.removesuffix(".tar")
    with _unfinished(path) as unfinished:
        with tarfile.open(unfinished, "w", format=tarfile.PAX_FORMAT) as archive:
            for item in sorted(items, key=lambda item: item.name.encode()):
                _add(item, f"{root}/{item.name}", archive)
        unfinished.replace(path)


def _put(item: Item, target: Path, *, link: bool) -> None:
    if isinstance(item.content, bytes):
        target.write_bytes(item.content)
    elif link and _linked(item.content, target):
        return
    else:
        shutil.copyfile(item.content, target)
    target.chmod(item.mode)


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:  # another disk
        return False
    return True


def _add(item: Item, name: str, archive: tarfile.TarFile) -> None:
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = item.mode, CLOCK
    if isinstance(item.content, bytes):
        info.size = len(item.content)
        archive.addfile(info, BytesIO(item.content))
        return
    info.size = item.content.stat().st_size
    with item.content.open("rb") as file:
        archive.addfile(info, file)


@contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """Give a name beside the target that is gone at the end, whatever happens."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
            yield Path(folder) / target.name
    except OSError as error:
        raise BuildFailedError(
            f"{target} cannot be written: {error.strerror or error}", remedy="name a place on a disk with enough room"
        ) from error
