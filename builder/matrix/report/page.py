"""A report of a matrix as one HTML page that asks nothing of any server: grid, cells, pictures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from builder.matrix.cellreport import changes_since, nearest_good
from builder.matrix.report.drawing import build_timeline, run_timeline, shown_seconds
from builder.matrix.report.text import closing_line
from builder.sizes import shown_bytes

if TYPE_CHECKING:
    from builder.matrix.cellreport import CellReport, MatrixReport
    from builder.verify.reported import Value
    from builder.verify.verdict import Check, Verdict

WORDS = {
    "good": "good",
    "bad": "bad",
    "unverified": "unverified",
    "unbuildable": "does not build",
    "unresolvable": "does not resolve",
    "refused": "refused",
    "pending": "not run",
    "excluded": "left out",
}
LOOKS = {
    "good": "good",
    "bad": "bad",
    "unbuildable": "bad",
    "unresolvable": "bad",
    "unverified": "open",
    "pending": "open",
    "refused": "refused",
    "excluded": "excluded",
}
MAX_COLUMNS = 6
_KERNEL = re.compile(r"\s*(\d+) of\s+(\d+)  (.+?)  (.+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRow:
    """A kernel of a dry run: bytes of shared memory that it asks for and may have, and what came of it."""

    used: int
    allowed: int
    verdict: str
    kernel: str

    @property
    def share(self) -> float:
        """How much of what is allowed it asks for, in percent, at most 100."""
        return min(100.0, 100.0 * self.used / self.allowed) if self.allowed else 100.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A line of the grid: the values of all axes but that of the columns, and a cell for each column."""

    heads: tuple[str, ...]
    cells: tuple[CellReport | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """The grid as a table: the axes of the rows, the axis of the columns and its values."""

    row_axes: tuple[str, ...]
    column_axis: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """What differs from something good: what that is, and one line for each package."""

    against: str
    lines: tuple[str, ...]


def page_text(report: MatrixReport) -> str:
    """Return the page."""
    environment = Environment(
        loader=PackageLoader("builder.matrix.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"bytes": shown_bytes, "seconds": shown_seconds, "figure": _figure}
    result, sentence = closing_line(report)
    return environment.get_template("report.html.j2").render(
        report=report,
        result=result,
        sentence=sentence,
        grid=grid_of(report),
        words=WORDS,
        looks=LOOKS,
        run_picture=Markup(run_timeline(report)),  # noqa: S704 - escaped where it is drawn
        picture=lambda cell: Markup(build_timeline(cell)),  # noqa: S704 - as above
        difference=lambda cell: difference_of(cell, report),
        kernels=kernels_of,
        others=_other_evidence,
    )


def grid_of(report: MatrixReport) -> Grid:
    """Return the cells as a table; the columns are the last axis that is short enough, and has more than one value."""
    values = {axis: _values(axis, report) for axis in report.axes}
    fitting = [axis for axis in report.axes if 1 < len(values[axis]) <= MAX_COLUMNS]
    column = fitting[-1] if fitting else report.axes[-1]
    others = tuple(axis for axis in report.axes if axis != column)
    by_place = {tuple(_shown(cell.values.get(axis)) for axis in (*others, column)): cell for cell in report.cells}
    rows = []
    for heads in product(*(values[axis] for axis in others)):
        cells = tuple(by_place.get((*heads, each)) for each in values[column])
        if any(cells):
            rows.append(Row(heads=heads, cells=cells))
    return Grid(row_axes=others, column_axis=column, columns=tuple(values[column]), rows=tuple(rows))


def difference_of(cell: CellReport, report: MatrixReport) -> Difference | None:
    """Return what differs from the last good run of a cell, or from the nearest good cell of one that is not good."""
    if not cell.packages:
        return None
    if cell.last_good is not None:
        against = f"the last good run, {cell.last_good.finished[:10]}"
        return Difference(against=against, lines=changes_since(cell.last_good.packages, cell.packages))
    near = nearest_good(cell, report) if cell.state != "good" else None
    if near is None:
        return None
    return Difference(against=f"the nearest good cell, {near.name}", lines=changes_since(near.packages, cell.packages))


def kernels_of(verdict: Verdict) -> tuple[KernelRow, ...]:
    """Return the kernels that the dry run of a verdict lists."""
    found = []
    for check in verdict.checks:
        for line in check.evidence if check.level == "dry-run" else ():
            match = _KERNEL.fullmatch(line)
            if match:
                used, allowed, said, kernel = match.groups()
                found.append(KernelRow(used=int(used), allowed=int(allowed), verdict=said, kernel=kernel))
    return tuple(found)


def _other_evidence(check: Check) -> tuple[str, ...]:
    return tuple(line for line in check.evidence if check.level != "dry-run" or not _KERNEL.fullmatch(line))


def _values(axis: str, report: MatrixReport) -> list[str]:
    return list(dict.fromkeys(_shown(cell.values.get(axis)) for cell in report.cells))


def _shown(value: Value | None) -> str:
    return "the recipe's own" if value is None else str(value)


def _figure(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
