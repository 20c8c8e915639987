"""Where a recipe's own files live: its lock, its verdict, its rendered Dockerfiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from builder.recipe.source import RecipeFile


@dataclass(frozen=True, kw_only=True, slots=True)
class Workspace:
    """The folders of one recipe in the project that holds it."""

    root: Path
    name: str

    @property
    def lock(self) -> Path:
        """The folder of the lock and the verdict."""
        return self.root / "lockfiles" / self.name

    @property
    def verdict(self) -> Path:
        """The verdict of the last proof."""
        return self.lock / "verdict.json"

    @property
    def dockerfiles(self) -> Path:
        """The folder of the rendered Dockerfiles."""
        return self.root / "dockerfiles" / self.name


def workspace_of(source: RecipeFile) -> Workspace:
    """Return the workspace of a recipe file: the folder above the nearest `recipes`, else the recipe's own folder."""
    path, name = source.path.resolve(), source.recipe.name
    if source.root is not None:
        return Workspace(root=source.root, name=name)
    for folder in path.parents:
        if folder.name == "recipes":
            return Workspace(root=folder.parent, name=name)
    return Workspace(root=path.parent, name=name)
