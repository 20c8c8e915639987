"""What no wheel may do: write outside its place, replace the environment's own files, or mean two things at once."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from builder.errors import BuildFailedError

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterable

    from builder.build.tarlayer import File
    from builder.build.venv import Venv

BROKEN = "the wheel is broken: take another release of it, or build the package from source"
MAX_PATH = 4095  # bytes: PATH_MAX of linux/limits.h, which counts a NUL
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
        "is not a plain path": not {"", "."}.isdisjoint(parts) or max(map(len, map(str.encode, parts))) > 255,
        "has a backslash or a control character in its name": "\\" in info.filename or not info.filename.isprintable(),
        "is a symbolic link or a device, not a file": stat.S_IFMT(mode) not in {0, stat.S_IFREG, stat.S_IFDIR},
        "has the setuid or setgid bit": info.filename[-1:] != "/" and bool(mode & (stat.S_ISUID | stat.S_ISGID)),
        "is encrypted": bool(info.flag_bits & 0x1),
    }
    return next((text for text, is_so in problems.items() if is_so), None)


def check_places(wheel: str, files: tuple[File, ...], venv: Venv) -> None:
    """Refuse files that replace the environment's own, or that are files and folders at once."""
    paths, taken = {file.path for file in files}, venv.own_files
    if replaced := paths & taken:
        raise BuildFailedError(f"{wheel}: {min(replaced)} belongs to the environment, not to a wheel", remedy=_HOSTILE)
    if both := folders_above(paths) & (paths | taken):
        raise BuildFailedError(f"{wheel}: {min(both)} is both a file and a folder", remedy=BROKEN)
    if longest := next((path for path in paths if len(path.encode()) > MAX_PATH), None):
        raise BuildFailedError(f"{wheel}: {longest[:200]}… is a longer path than Linux has", remedy=_HOSTILE)


def folders_above(paths: Iterable[str]) -> set[str]:
    """Return the folders that absolute paths lie in, without the root."""
    found: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in found:  # those above a folder that was found before were found with it
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found
