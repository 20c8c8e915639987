"""Files that are made from code or data: written by one function, compared with what is committed by another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.document import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratedFile:
    """A file below the project's folder, and the text that it must have."""

    path: str
    text: str


def write_generated(files: Iterable[GeneratedFile], root: Path) -> tuple[str, ...]:
    """Write the files that differ, and return their paths."""
    wrong = tuple(file for file in files if not _is_current(file, root))
    for file in wrong:
        write_atomic(root / file.path, file.text.encode())
    return tuple(file.path for file in wrong)


def stale_generated(files: Iterable[GeneratedFile], root: Path) -> tuple[str, ...]:
    """Return the paths of the files that are missing or differ from what they must be; nothing is written."""
    return tuple(file.path for file in files if not _is_current(file, root))


def _is_current(file: GeneratedFile, root: Path) -> bool:
    try:
        return (root / file.path).read_bytes() == file.text.encode()
    except FileNotFoundError:
        return False
