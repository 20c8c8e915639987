"""Files on their way out of the store: written as a folder or as a tar, complete or not at all."""

from __future__ import annotations

import os
import shutil
import tarfile
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Literal

from builder.places import unfinished

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

CLOCK = 315532800  # 1980-01-01, as in build contexts: equal parcels are equal bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One file of a parcel: its name below the parcel's root, and its bytes or the file of this machine with them."""

    name: str
    content: Path | bytes
    mode: Literal[0o644, 0o755] = 0o644


def write_folder(items: Iterable[Item], folder: Path, *, link: bool = False) -> None:
    """Write a parcel as a new folder, or into an empty one; `link` makes hard links (only where nobody edits them).

    Raises UsageError if something is there already, BuildFailedError if the disk refuses.
    """
    with unfinished(folder) as path:
        path.mkdir()
        for item in items:
            target = path / item.name
            target.parent.mkdir(parents=True, exist_ok=True)
            _put(item, target, link=link)


def write_tar(items: Iterable[Item], path: Path) -> None:
    """Write a parcel as an uncompressed tar below one folder, named as the file is; equal parcels give equal bytes."""
    root = path.name.removesuffix(".tar")
    with unfinished(path) as file, tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        for item in sorted(items, key=lambda item: item.name.encode()):
            _add(item, f"{root}/{item.name}", archive)


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
