"""The patch files that a recipe names: their bytes, and their hashes as the lock keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.document import sha256_bytes
from builder.errors import InvalidDocumentError
from builder.lock.model import LockedPatch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def locked_patches(files: Iterable[str], folder: Path, place: str) -> tuple[LockedPatch, ...]:
    """Return patch files with the sha256 of each; `folder` is where their paths start."""
    return tuple(LockedPatch(file=name, sha256=sha256_bytes(read_patch(folder, name, place))) for name in files)


def read_patch(folder: Path, name: str, place: str) -> bytes:
    """Return the bytes of a patch file beside a recipe; `place` names the recipe's field in the error."""
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise InvalidDocumentError(
            f"{place}: {folder / name} cannot be read: {error.strerror}", remedy="give paths relative to the recipe"
        ) from None
