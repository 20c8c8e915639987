"""What no wheel may do: write outside its place, replace the environment's own files, or mean two things at once."""

from __future__ import annotations

import posixpath
import stat
from typing import TYPE_CHECKING

from builder.errors import BuildFailedError

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterable, Iterator

    from builder.build.tarlayer import File
    from builder.build.venv import Venv

BROKEN = "the wheel is broken: take another release of it, or build the package from source"
_HOSTILE = "do not install this wheel; find out who made it"


def check_members(wheel: str, members: Iterable[zipfile.ZipInfo]) -> None:
    """Refuse names and kinds of files that could write outside the environment or surprise the reader of the wheel."""
    names: dict[str, str] = {}
    for info in members:
        problem = _problem(info)
        if problem is None and not info.is_dir():
            folded = info.filename.casefold()
            other = names.setdefault(folded, info.filename)
            if other is not info.filename:
                problem = "comes twice" if other == info.filename else f"differs from {other!r} in case only"
        if problem is not None:
            raise BuildFailedError(f"{wheel}: {info.filename!r} {problem}", remedy=_HOSTILE)


def _problem(info: zipfile.ZipInfo) -> str | None:
    parts = info.filename.removesuffix("/").split("/")
    mode = info.external_attr >> 16
    problems = {
        "is an absolute path": info.filename.startswith("/"),
        "leaves the wheel's folder": ".." in parts,
        "is not a plain path": any(part in {"", "."} or len(part.encode()) > 255 for part in parts),
        "has a backslash or a control character in its name": "\\" in info.filename or not info.filename.isprintable(),
        "is a symbolic link or a device, not a file": stat.S_IFMT(mode) not in {0, stat.S_IFREG, stat.S_IFDIR},
        "has the setuid or setgid bit": not info.is_dir() and bool(mode & (stat.S_ISUID | stat.S_ISGID)),
        "is encrypted": bool(info.flag_bits & 0x1),
    }
    return next((text for text, is_so in problems.items() if is_so), None)


def check_places(wheel: str, files: tuple[File, ...], venv: Venv) -> None:
    """Refuse files that replace the environment's own, or that are files and folders at once."""
    taken = venv.own_files
    paths = {file.path for file in files}
    for file in files:
        if file.path in taken:
            raise BuildFailedError(f"{wheel}: {file.path} belongs to the environment, not to a wheel", remedy=_HOSTILE)
        if above := next((folder for folder in folders_above(file.path) if folder in paths or folder in taken), None):
            raise BuildFailedError(f"{wheel}: {above} is both a file and a folder", remedy=BROKEN)


def folders_above(path: str) -> Iterator[str]:
    """Yield the folders that an absolute path lies in, without the root."""
    while (path := posixpath.dirname(path)) != "/":
        yield path
