"""A recipe file in; a Recipe, or every complaint about the file, out."""

from __future__ import annotations

import difflib
import json
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import ValidationError

from builder.errors import InvalidDocumentError, UsageError
from builder.recipe.complaints import complaints_of, stack_complaints
from builder.recipe.model import Recipe
from builder.recipe.yaml_text import Complaint, Location, Place, YamlText, dotted, read_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


_GIVE_ANOTHER = "give the path of a recipe that you may read"


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
    refuse_no_recipe(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidDocumentError(f"{path}: byte {error.start} is not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", remedy=_GIVE_ANOTHER) from None
    read, recipe, complaints = _parse(text)
    if recipe is None:
        raise InvalidDocumentError("\n".join(complaint_lines(complaints, str(path))), remedy="")
    return RecipeFile(path=path, recipe=recipe, places=read.places)


def parse_recipe(text: str) -> tuple[Recipe | None, tuple[Complaint, ...]]:
    """Return the recipe in `text`, or None and all complaints in file order; never raises."""
    _, recipe, complaints = _parse(text)
    return recipe, complaints


def complaint_lines(complaints: tuple[Complaint, ...], source: str) -> list[str]:
    """Return complaints as people and editors read them: `source:line:column: path: message`."""
    return [f"{source}:{c.line}:{c.column}: {c.path + ': ' if c.path else ''}{c.message}" for c in complaints]


def _parse(text: str) -> tuple[YamlText, Recipe | None, tuple[Complaint, ...]]:
    read = read_yaml(text)
    if not isinstance(read.data, dict):
        return read, None, read.complaints or (_not_a_recipe(read),)
    recipe, found = None, [*read.complaints, *stack_complaints(read)]
    try:
        recipe = Recipe.model_validate_json(json.dumps(read.data))
    except ValidationError as error:
        named = {complaint.path for complaint in found}
        found.extend(each for each in complaints_of(error.errors(), read) if each.path not in named)
    found.sort(key=lambda complaint: (complaint.line, complaint.column, complaint.path))
    return read, None if found else recipe, tuple(found)


def _not_a_recipe(read: YamlText) -> Complaint:
    line, column = read.places.get((), (1, 1))
    what = "the file is empty" if read.data is None else "this is no mapping"
    return Complaint(line=line, column=column, path="", message=f"{what}; a recipe begins with `version: 1`")


def refuse_no_recipe(path: Path) -> None:
    """Raise UsageError for what is not there, and for what would never end, or never begin, when it is read."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UsageError(f"{path}: no such recipe", remedy=_suggest_file(path)) from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", remedy=_GIVE_ANOTHER) from None
    kinds = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
    if not stat.S_ISREG(mode):
        what = next((words for is_kind, words in kinds.items() if is_kind(mode)), "a device")
        raise UsageError(f"{path}: this is {what}, not a file", remedy="give the path of a recipe's file")


def _suggest_file(path: Path) -> str:
    names = [found.name for found in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    if close:
        return f"did you mean {path.parent / close[0]}?"
    return "give the path of a recipe, such as recipes/quickstart.yaml"
