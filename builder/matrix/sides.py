"""What a person names -> a recipe with its lock: a recipe, the folder of a lock, or either at a git revision."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from builder.compare.operands import RECIPE_SUFFIXES, folder_lock, recipe_at, recipe_lock, recipes_at
from builder.errors import UsageError
from builder.recipe.source import RecipeFile, read_recipe

if TYPE_CHECKING:
    from builder.lock.model import Lock
    from builder.tools import Tools

FORMS = "give a recipe, the folder of a lock, REV:recipes/x.yaml or REV:lockfiles/x"


@dataclass(frozen=True, kw_only=True, slots=True)
class Locked:
    """A recipe and its lock, by the name that a person gave."""

    name: str
    source: RecipeFile
    lock: Lock


def read_side(name: str, tools: Tools) -> Locked:
    """Return the recipe and the lock that a name stands for; raise UsageError if it stands for none."""
    path = Path(name)
    if path.is_file():
        return Locked(name=name, source=read_recipe(path), lock=recipe_lock(path, tools))
    if path.is_dir():
        return Locked(name=name, source=_recipe_of(path), lock=folder_lock(path))
    revision, colon, inside = name.partition(":")
    if not colon:
        raise UsageError(f"{name} is no recipe and no folder of a lock", remedy=FORMS)
    recipe = inside if inside.endswith(RECIPE_SUFFIXES) else _recipe_in(revision, inside)
    parsed, lock = recipe_at(revision, recipe, Path())
    return Locked(name=name, source=RecipeFile(path=Path(recipe), recipe=parsed), lock=lock)


def _recipe_of(folder: Path) -> RecipeFile:
    """Return the recipe that a lock's folder belongs to, by its name."""
    project, name = folder.resolve().parent.parent, folder.resolve().name
    paths = sorted((project / "recipes").rglob(f"{name}.yaml"))
    if not paths:
        raise UsageError(
            f"{folder}: no recipe {name}.yaml below {project / 'recipes'}", remedy="give the recipe instead"
        )
    return read_recipe(paths[0])


def _recipe_in(revision: str, folder: str) -> str:
    name = PurePosixPath(folder).name
    found = [path for path in recipes_at(revision, Path()) if PurePosixPath(path).stem == name]
    if not found:
        raise UsageError(f"{revision}:{folder}: no recipe {name}.yaml at that revision", remedy=FORMS)
    return found[0]
