"""Matrix -> cells: each a recipe with edits, a name, and what is known of it without running anything."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from typing import TYPE_CHECKING

from builder.errors import InvalidDocumentError, UsageError
from builder.matrix.grid import MAX_CELLS, names
from builder.matrix.variant import axis_path, edited, own_value
from builder.preflight.examine import preflight
from builder.recipe.source import read_recipe
from builder.recipe.targets import find_target, targets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from builder.matrix.grid import Expectation, MatrixFile
    from builder.recipe.source import RecipeFile
    from builder.verify.reported import Value

_SHORT = {"target": "target.gpu"}
_FIELD = re.compile(r"\{([^{}]+)\}")
_UNSAFE = re.compile(r"[^A-Za-z0-9.+]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One stack of a matrix: its recipe, the edits, and why it is left out or refused (None: it is run).

    `name` is that of a file and of a job; `expected` says how it is known to end where that is not good.
    """

    name: str
    values: Mapping[str, Value]
    source: RecipeFile
    edits: Mapping[str, Value]
    excluded: str | None = None
    refused: str | None = None
    added: str | None = None
    expected: Expectation | None = None

    @property
    def gpu(self) -> str:
        """The GPU that the cell is for."""
        return str(self.edits.get("target.gpu", self.source.recipe.target.gpu))

    @property
    def to_run(self) -> bool:
        """Whether the cell is built and proven."""
        return self.excluded is None and self.refused is None


def cells_of(file: MatrixFile) -> tuple[Cell, ...]:
    """Return all cells in the file's order, those that are left out too; raise InvalidDocumentError for a bad axis.

    Reads the recipes and applies preflight to each cell: offline, in milliseconds.
    """
    matrix = file.matrix
    recipes: dict[Path, RecipeFile] = {}
    found: dict[str, Cell] = {}
    for values, place, added in _wanted(file):
        cell = _cell(file, dict(values), place, added, recipes)
        if cell.name in found:
            raise file.error(place, f"the cell {cell.name} is there twice")
        found[cell.name] = cell
    if len(found) > MAX_CELLS:
        raise file.error(
            ("axes",), f"{len(found)} cells are more than {MAX_CELLS}; split the matrix into several files"
        )
    used = {axis for cell in found.values() for axis in cell.values}
    unused = [axis for axis in matrix.axes if axis not in used]
    if unused:
        raise file.error(("axes", unused[0]), "no cell has this axis")
    _check_runners(file, found.values())
    return tuple(found.values())


def _check_runners(file: MatrixFile, cells: Iterable[Cell]) -> None:
    """Raise InvalidDocumentError for labels of what no cell has: they would be given to no job."""
    known = {"default", *targets(), *(cell.source.recipe.name for cell in cells)}
    for name in file.matrix.runners:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            advice = f" (did you mean {near[0]}?)" if near else ""
            raise file.error(("runners", name), f"neither a recipe of this matrix, nor a GPU, nor `default`{advice}")


def find_cells(cells: tuple[Cell, ...], wanted: tuple[str, ...]) -> tuple[Cell, ...]:
    """Return the cells with these names, all where none is named; raise UsageError for a name that no cell has."""
    known = {cell.name: cell for cell in cells}
    for name in wanted:
        if name not in known:
            raise UsageError(f"no cell is named {name}", remedy="see `envbuild matrix list`")
    return tuple(known[name] for name in wanted) if wanted else cells


def _wanted(file: MatrixFile) -> Iterator[tuple[dict[str, Value], tuple[str | int, ...], str | None]]:
    """Yield the values of every cell, the place of the file that asks for it, and why it was added."""
    matrix = file.matrix
    count = 1
    for values in matrix.axes.values():
        count *= len(values)
    if count > MAX_CELLS:
        raise file.error(("axes",), f"{count} cells are more than {MAX_CELLS}; split the matrix into several files")
    for chosen in product(*matrix.axes.values()):
        yield dict(zip(matrix.axes, chosen, strict=True)), ("axes",), None
    for index, inclusion in enumerate(matrix.include):
        yield dict(inclusion.cell), ("include", index), inclusion.reason


def _cell(
    file: MatrixFile,
    values: dict[str, Value],
    place: tuple[str | int, ...],
    added: str | None,
    recipes: dict[Path, RecipeFile],
) -> Cell:
    matrix = file.matrix
    path = file.path.parent / _filled(file, values, place)
    if path not in recipes:
        recipes[path] = _recipe(file, path, place)
    source = recipes[path]
    edits = _edits(file, source, values, place)
    excluded = next((rule.reason for rule in matrix.exclude if names(rule.cells, values)), None)
    return Cell(
        name="_".join(_UNSAFE.sub("-", str(value)) for value in values.values()) or matrix.name,
        values=values,
        source=source,
        edits=edits,
        excluded=None if added else excluded,
        refused=_refusal(source, edits) if added or not excluded else None,
        added=added,
        expected=next((rule for rule in matrix.expect if names(rule.cells, values)), None)
        if added or not excluded
        else None,
    )


def _filled(file: MatrixFile, values: Mapping[str, Value], place: tuple[str | int, ...]) -> str:
    def value(match: re.Match[str]) -> str:
        axis = match.group(1)
        if axis not in file.matrix.axes:
            raise file.error(("recipe",), f"{{{axis}}} is no axis (the axes: {', '.join(file.matrix.axes)})")
        if axis not in values:
            raise file.error(place, f"the recipe needs a value of {axis}")
        return str(values[axis])

    return _FIELD.sub(value, file.matrix.recipe)


def _recipe(file: MatrixFile, path: Path, place: tuple[str | int, ...]) -> RecipeFile:
    if not path.is_file():
        raise file.error(("recipe",) if place == ("axes",) else place, f"there is no recipe {path}")
    return read_recipe(path)


def _edits(
    file: MatrixFile, source: RecipeFile, values: Mapping[str, Value], place: tuple[str | int, ...]
) -> dict[str, Value]:
    """Return what the values change in the recipe; an axis that only names the recipe changes nothing."""
    edits: dict[str, Value] = {}
    axes: dict[str, str] = {}
    named = set(_FIELD.findall(file.matrix.recipe))
    for axis, value in values.items():
        if axis in named:
            continue
        index = file.matrix.axes[axis].index(value) if place == ("axes",) else 0
        where = ("axes", axis, index) if place == ("axes",) else (*place, "cell", axis)
        try:
            path = _SHORT.get(axis) or axis_path(source.recipe, axis)
        except UsageError as error:
            raise file.error(where, error.message.removeprefix(f"--axis {axis}: ")) from None
        if path in axes:
            raise file.error(where, f"changes {path}, as the axis {axes[path]} does")
        axes[path] = axis
        if own_value(source.recipe, path) != value:
            if not isinstance(value, str) and not path.startswith("serve."):
                written = file.read.written.get(where, value)
                raise file.error(where, f"YAML reads {written} as {value!r}; write '{written}' in quotes")
            edits[path] = value
            _check(file, source, {path: value}, where)
    return edits


def _check(file: MatrixFile, source: RecipeFile, edits: Mapping[str, Value], where: tuple[str | int, ...]) -> None:
    try:
        find_target(edited(source, edits).recipe.target.gpu)
    except InvalidDocumentError as error:
        raise file.error(where, error.message.removeprefix(f"{source.path}: ")) from None


def _refusal(source: RecipeFile, edits: Mapping[str, Value]) -> str | None:
    """Return why preflight refuses a cell, by the recipe alone."""
    finding = next((each for each in preflight(edited(source, edits).recipe) if each.refuses), None)
    return None if finding is None else f"{finding.rule}: {finding.sentence}"
