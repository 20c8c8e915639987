"""One package of a recipe that is to come as source, and how its patched tree becomes a canonical archive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builder.document import sha256_file
from builder.lock.archive import write_archive
from builder.lock.patches import apply_patches, locked_patches

if TYPE_CHECKING:
    from pathlib import Path

    from builder.lock.model import LockedPatch
    from builder.recipe.model import Package, Recipe
    from builder.settings import Settings
    from builder.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """A package by its name in the stack; `folder` is where relative paths of the recipe start."""

    name: str
    package: Package
    recipe: Recipe
    folder: Path
    store: Store
    settings: Settings

    @property
    def place(self) -> str:
        """The package's place in the recipe, for errors."""
        return f"stack.{self.name}"

    @property
    def project(self) -> str:
        """The package's normalized name."""
        return canonicalize_name(self.name)

    @property
    def patches(self) -> tuple[LockedPatch, ...]:
        """The package's patch files as they are now."""
        return locked_patches(self.package.patches, self.folder, f"{self.place}.patches")

    def archive(self, tree: Path) -> str:
        """Apply the patches to a source tree and keep its canonical archive; return the archive's sha256."""
        apply_patches(self.patches, self.folder, tree, f"{self.place}.patches")
        archive = tree.with_name(f"{tree.name}.tar")
        write_archive(tree, archive)
        sha256 = sha256_file(archive)
        return sha256 if self.store.has(sha256) else self.store.add(archive, sha256)
