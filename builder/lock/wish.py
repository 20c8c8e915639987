"""One package of a recipe that is to come as source, and how its tree is patched and kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builder.lock.archive import write_archive
from builder.lock.patches import patched_tree
from builder.lock.patchfiles import locked_patches

if TYPE_CHECKING:
    from builder.lock.model import LockedPatch
    from builder.lock.tree import SourceFile
    from builder.recipe.model import Package, Recipe
    from builder.recipe.source import RecipeFile
    from builder.settings import Settings
    from builder.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """A package by its name in the stack of a recipe."""

    name: str
    package: Package
    source: RecipeFile
    store: Store
    settings: Settings

    @property
    def recipe(self) -> Recipe:
        """The whole recipe."""
        return self.source.recipe

    @property
    def place(self) -> str:
        """The package's place in the recipe, for errors."""
        return self.place_of()

    def place_of(self, *keys: str) -> str:
        """Return the place of one of the package's fields in the recipe, for errors."""
        return self.source.place_of("stack", self.name, *keys)

    @property
    def project(self) -> str:
        """The package's normalized name."""
        return canonicalize_name(self.name)

    @property
    def patches(self) -> tuple[LockedPatch, ...]:
        """The package's patch files as they are now."""
        return locked_patches(self.package.patches, self.source.folder, self.place_of("patches"))

    def patched(self, tree: dict[str, SourceFile]) -> dict[str, SourceFile]:
        """Return a source tree with the package's patches applied; raise ResolveError if one does not fit."""
        with self.store.scratch() as scratch:
            return patched_tree(tree, self.patches, self.source.folder, scratch, self.place_of("patches"))

    def keep(self, tree: dict[str, SourceFile]) -> str:
        """Keep the canonical archive of a tree in the store; return its sha256."""
        with self.store.scratch() as scratch:
            write_archive(tree, scratch / "source.tar")
            return self.store.add(scratch / "source.tar")


def wishes_of(source: RecipeFile, store: Store, settings: Settings) -> tuple[Wish, ...]:
    """Return the packages of a recipe that are compiled from git or an sdist, by name."""
    return tuple(
        Wish(
            name=name,
            package=package,
            source=source,
            store=store,
            settings=settings,
        )
        for name, package in sorted(source.recipe.stack.items())
        if package.from_source and package.path is None
    )
