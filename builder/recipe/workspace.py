"""Where a recipe's own files live: its lock, its verdict, its rendered Dockerfiles."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import InvalidDocumentError

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


def refuse_namesake(source: RecipeFile) -> None:
    """Raise InvalidDocumentError if another recipe of the project has the same name: both would share one lock."""
    if source.root is not None:
        return
    workspace = workspace_of(source)
    folder = workspace.root / "recipes"
    others = sorted(
        folder.rglob("*.yaml") if source.path.resolve().is_relative_to(folder) else workspace.root.glob("*.yaml")
    )
    named = re.compile(rf"""^name:[ ]*(["']?){re.escape(workspace.name)}\1[ ]*(#.*)?$""", re.MULTILINE)
    for other in others:
        if other.is_file() and not other.samefile(source.path) and named.search(other.read_text(errors="replace")):
            raise InvalidDocumentError(
                f"{source.place_of('name')}: {other} has the same name, and both would share {workspace.lock}",
                remedy="give one of the two another name",
            )


def workspace_of(source: RecipeFile) -> Workspace:
    """Return the workspace of a recipe file: the folder above the nearest `recipes`, else the recipe's own folder."""
    path, name = source.path.resolve(), source.recipe.name
    if source.root is not None:
        return Workspace(root=source.root, name=name)
    for folder in path.parents:
        if folder.name == "recipes":
            return Workspace(root=folder.parent, name=name)
    return Workspace(root=path.parent, name=name)
