"""Source trees as canonical tar files: the same names, bytes, links and executable bits give the same archive."""

from __future__ import annotations

import tarfile
from typing import IO, TYPE_CHECKING

from builder.errors import ResolveError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path, PurePosixPath


def write_archive(tree: Path, archive: Path) -> None:
    """Write the files and links of a source tree, with the folders above them, as a tar without times and owners."""
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in _members(tree):
            info = tarfile.TarInfo(path.relative_to(tree).as_posix())
            if path.is_symlink():
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
                tar.addfile(info)
            elif path.is_dir():
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
            else:
                info.size, info.mode = path.stat().st_size, 0o755 if path.stat().st_mode & 0o100 else 0o644
                with path.open("rb") as file:
                    tar.addfile(info, file)


def unpack_archive(archive: Path, folder: Path, *, label: str) -> None:
    """Unpack a source archive below a folder; raise ResolveError if it is none or wants to write elsewhere."""
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="tar")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ResolveError(f"{label} cannot be unpacked: {error}", remedy="") from error


def read_text(archive: Path, name: PurePosixPath) -> str | None:
    """Return a text file of a canonical archive, None if it has no such file."""
    with tarfile.open(archive) as tar:
        try:
            file: IO[bytes] | None = tar.extractfile(name.as_posix())
        except KeyError:
            return None
        return None if file is None else file.read().decode(errors="replace")


def _members(tree: Path) -> Iterator[Path]:
    """Yield files, links and the folders that lead to them, parents first, in the order of their names' bytes."""
    found = [path for path in tree.rglob("*") if path.is_symlink() or path.is_file()]
    folders = {parent for path in found for parent in path.parents if parent.is_relative_to(tree) and parent != tree}
    return iter(sorted({*found, *folders}, key=lambda path: bytes(path.relative_to(tree))))
