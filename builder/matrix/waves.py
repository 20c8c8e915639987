"""Which cells compile the same or install the same, so that one goes first and the others find what it made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.document import key_of
from builder.matrix.variant import edited
from builder.recipe.model import BuildSettings
from builder.recipe.targets import find_target

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.matrix.cells import Cell
    from builder.recipe.model import Recipe


def leaders_of(cells: Iterable[Cell]) -> dict[str, str | None]:
    """Return for each cell, by name, the cell whose wheels it waits for; None: it goes first, or compiles nothing."""
    ordered = list(cells)
    first = compiled_first(ordered)
    leaders = {cell.name: first.get(wheels_key(cell) or "") for cell in ordered}
    return {name: leader.name if leader and leader.name != name else None for name, leader in leaders.items()}


def compiled_first(cells: Iterable[Cell]) -> dict[str, Cell]:
    """Return the first cell of all that compile the same, by the key of what they compile."""
    first: dict[str, Cell] = {}
    for cell in cells:
        if key := wheels_key(cell):
            first.setdefault(key, cell)
    return first


def apart(cells: Iterable[Cell]) -> list[Cell]:
    """Return cells in the order in which they wait least: one of each stack, then those that find its layers made."""
    turns: dict[str, int] = {}
    turn: dict[str, int] = {}
    ordered = list(cells)
    for cell in ordered:
        key = _stack_key(edited(cell.source, cell.edits).recipe)
        turn[cell.name] = turns[key] = turns.get(key, -1) + 1
    return sorted(ordered, key=lambda cell: turn[cell.name])


def _stack_key(recipe: Recipe) -> str:
    """Return what the layers of a recipe's packages depend on, as far as it tells."""
    apart_from = {"name", "description", "target", "host", "serve", "smoke", "waive"}
    return key_of({field: value for field, value in recipe.to_plain().items() if field not in apart_from})


def wheels_key(cell: Cell) -> str | None:
    """Return what a cell's compiled wheels depend on, as far as its recipe tells; None where it compiles none."""
    recipe = edited(cell.source, cell.edits).recipe
    compiled = {name: package for name, package in recipe.stack.items() if package.from_source}
    if not compiled:
        return None
    torch = recipe.stack.get("torch")
    archs = find_target(recipe.target.gpu).capability
    return key_of(
        {
            "packages": {
                name: [package.to_plain(), list((package.build or BuildSettings()).archs) or [archs]]
                for name, package in sorted(compiled.items())
            },
            "base": recipe.base.to_plain(),
            "python": recipe.python,
            "cuda": recipe.cuda,
            "torch": torch.to_plain() if torch else None,
        }
    )
