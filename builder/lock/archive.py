"""Archives of source trees: sdists read, and the canonical tar of a tree written, read and unpacked."""

from __future__ import annotations

import io
import tarfile
import zlib
from typing import TYPE_CHECKING

from builder.errors import ResolveError
from builder.lock.tree import SourceFile, checked_tree, parents

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path, PurePosixPath


def write_archive(tree: Mapping[str, SourceFile], archive: Path) -> None:
    """Write a tree as a tar without times and owners, each file after the folders that lead to it."""
    folders: set[str] = set()
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, file in tree.items():
            for folder in parents(name):
                if folder not in folders:
                    folders.add(folder)
                    tar.addfile(_folder(folder))
            tar.addfile(_member(name, file), io.BytesIO(file.data))


def read_sdist(archive: Path, label: str) -> dict[str, SourceFile]:
    """Return the tree of an sdist without its one top folder; raise ResolveError if the archive is no sdist."""
    from isal import igzip  # noqa: PLC0415 - slow to import, and only sdists need it

    try:
        unpacked = io.BytesIO(igzip.decompress(archive.read_bytes()))  # type: ignore[no-untyped-call]
        with tarfile.open(fileobj=unpacked, mode="r:") as tar:
            members = {member.name.removeprefix("./").rstrip("/"): member for member in tar if not member.isdir()}
            files = {name: _read(tar, member) for name, member in members.items()}
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ResolveError(f"{label} cannot be unpacked: {error}", remedy="") from error
    if len({name.partition("/")[0] for name in files}) != 1 or not all("/" in name for name in files):
        raise ResolveError(f"{label} has not one folder at its top, so it is no source distribution", remedy="")
    return checked_tree({name.partition("/")[2]: file for name, file in files.items()}, label)


def read_texts(archive: Path, *names: PurePosixPath) -> tuple[str | None, ...]:
    """Return text files of a canonical archive, None for each that it does not have."""
    with tarfile.open(archive) as tar:
        members = {member.name: member for member in tar}
        found = [members.get(name.as_posix()) for name in names]
        files = [None if member is None else tar.extractfile(member) for member in found]
        return tuple(None if file is None else file.read().decode(errors="replace") for file in files)


def unpack_archive(archive: Path, folder: Path) -> None:
    """Unpack a canonical archive below an empty folder, readable for everyone."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="tar")


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> SourceFile:
    if member.issym():
        return SourceFile(kind="link", data=member.linkname.encode(errors="surrogateescape"))
    file = tar.extractfile(member)
    if file is None:
        raise tarfile.ExtractError(f"{member.name} is neither a file nor a link")
    return SourceFile(kind="executable" if member.mode & 0o100 else "file", data=file.read())


def _folder(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    return info


def _member(name: str, file: SourceFile) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    if file.kind == "link":
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, file.data.decode(errors="surrogateescape"), 0o777
    else:
        info.size, info.mode = len(file.data), 0o755 if file.kind == "executable" else 0o644
    return info
