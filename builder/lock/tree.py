"""Source trees as values: names, bytes, links and executable bits, without times, owners and empty folders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.errors import ResolveError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORBIDDEN = frozenset({"", ".", ".."})


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """One entry of a tree; of a link, `data` is what it points to."""

    kind: Literal["file", "executable", "link"]
    data: bytes


def checked_tree(files: Mapping[str, SourceFile], label: str) -> dict[str, SourceFile]:
    """Return a tree in the order of its names' bytes.

    Raise ResolveError for a name that leads out of the tree, into version control, or through a link.
    """
    for name in files:
        parts = name.split("/")
        if FORBIDDEN.intersection(parts) or ".git" in {part.lower() for part in parts}:
            raise ResolveError(f"{label}: the source holds a file with the forbidden name {name!r}", remedy="")
        if any(parent in files for parent in parents(name)):
            raise ResolveError(f"{label}: the source holds {name!r} below something that is no folder", remedy="")
    return {name: files[name] for name in sorted(files, key=lambda name: name.encode(errors="surrogateescape"))}


def parents(name: str) -> list[str]:
    """Return the folders that lead to a file, the outermost first."""
    parts = name.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]


def write_tree(tree: Mapping[str, SourceFile], folder: Path) -> None:
    """Write a checked tree below an empty folder."""
    for name, file in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.kind == "link":
            path.symlink_to(file.data.decode(errors="surrogateescape"))
        else:
            path.write_bytes(file.data)
            path.chmod(0o755 if file.kind == "executable" else 0o644)


def read_tree(folder: Path, label: str) -> dict[str, SourceFile]:
    """Read the tree below a folder."""
    found = {path.relative_to(folder).as_posix(): _read(path) for path in folder.rglob("*") if not _is_folder(path)}
    return checked_tree(found, label)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _read(path: Path) -> SourceFile:
    if path.is_symlink():
        return SourceFile(kind="link", data=bytes(path.readlink()))
    return SourceFile(kind="executable" if path.stat().st_mode & 0o100 else "file", data=path.read_bytes())
