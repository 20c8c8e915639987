"""A recipe file in; a Recipe, or every complaint about the file, out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.recipe.complaints import stack_complaints
from builder.recipe.model import Recipe
from builder.recipe.reading import parse_document, read_document, refuse_no_file
from builder.recipe.yaml_text import dotted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from builder.recipe.yaml_text import Complaint, Location, Place, YamlText

NOUN, EXAMPLE = "recipe", "recipes/quickstart.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeFile:
    """A recipe and where it was read: relative paths in it start at `folder`, `places` are lines and columns from 1.

    A variant of a recipe has a `root` of its own for lock and verdict, and a `tag` of its own for its image.
    """

    path: Path
    recipe: Recipe
    root: Path | None = None
    tag: str = "latest"
    places: Mapping[Location, Place] = field(default_factory=dict, compare=False, repr=False)

    @property
    def folder(self) -> Path:
        """The folder that relative paths of the recipe start from."""
        return self.path.parent

    def place_of(self, *location: str | int) -> str:
        """Return where a key of the recipe stands, as `file:line:column: path`, or the nearest key above it.

        Without the line where even that is unknown.
        """
        above = (location[:length] for length in range(len(location), 0, -1))
        line, column = next((self.places[key] for key in above if key in self.places), (0, 0))
        where = f"{self.path}:{line}:{column}" if line else str(self.path)
        return f"{where}: {dotted(location)}"


def read_recipe(path: Path) -> RecipeFile:
    """Read a recipe; raise InvalidDocumentError with every complaint as `file:line:column: path: message`.

    Raise UsageError where there is no file that can be read.
    """
    read, recipe = read_document(path, Recipe, noun=NOUN, more=_more, example=EXAMPLE)
    return RecipeFile(path=path, recipe=recipe, places=read.places)


def refuse_no_recipe(path: Path) -> None:
    """Raise UsageError for what is not there, and for what would never end, or never begin, when it is read."""
    refuse_no_file(path, NOUN, EXAMPLE)


def parse_recipe(text: str) -> tuple[Recipe | None, tuple[Complaint, ...]]:
    """Return the recipe in `text`, or None and all complaints in file order; never raises."""
    _, recipe, complaints = parse_document(text, Recipe, noun=NOUN, more=_more)
    return recipe, complaints


def _more(read: YamlText, _recipe: Recipe | None) -> Iterable[Complaint]:
    return stack_complaints(read)
