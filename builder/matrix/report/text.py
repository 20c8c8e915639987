"""A report of a matrix as a table for a terminal, and in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from builder.matrix.cellreport import CellReport, MatrixReport

COLOURS = {"good": "green", "bad": "red", "unbuildable": "red", "unresolvable": "red", "unverified": "yellow"}


def cells_table(report: MatrixReport) -> Table:
    """Return the cells as a table: name, state, and why."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("cell", "recipe", "state", "why"):
        table.add_column(heading, overflow="fold")
    for cell in report.cells:
        table.add_row(cell.name, cell.recipe, Text(_state(cell), style=COLOURS.get(cell.state, "dim")), why(cell))
    return table


def _state(cell: CellReport) -> str:
    state = "to run" if cell.state == "pending" else cell.state
    return f"{state}, known" if cell.known else state


def why(cell: CellReport) -> str:
    """Return why a cell ended as it did, and what the matrix says of it."""
    notes = []
    if cell.added:
        notes.append(f"added: {cell.added}")
    if cell.expected:
        notes.append(f"expected {cell.expected.result}: {cell.expected.reason}")
    cause = "" if cell.state == "pending" else cell.cause
    return " · ".join(part for part in (cause, *notes) if part)


def closing_line(report: MatrixReport) -> tuple[str, str]:
    """Return how a matrix ended, as the result of a whole, and the sentence about it."""
    counts = ", ".join(f"{count} {state}" for state, count in report.counts.items())
    wrong = [cell for cell in report.cells if not cell.ends_as_expected]
    judged = [cell for cell in wrong if cell.state not in {"unverified", "pending"}]
    told = f"{len(report.cells)} cells: {counts}"
    if judged:
        return "bad", f"{told}; not as expected: {_names(judged)}"
    if wrong:
        return "unverified", f"{told}; not judged: {_names(wrong)}"
    return "good", f"{told}, all as expected"


def _names(cells: list[CellReport]) -> str:
    more = f" and {len(cells) - 5} more" if len(cells) > 5 else ""
    return f"{', '.join(f'{cell.name} ({cell.surprise})' for cell in cells[:5])}{more}"
