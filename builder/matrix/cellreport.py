"""What is known of a matrix after a run: one report for each cell, and all of them together."""

from __future__ import annotations

from typing import Literal

from builder.document import Document
from builder.matrix.grid import Values
from builder.matrix.outcome import Result
from builder.verify.verdict import Verdict

State = Literal["good", "bad", "unverified", "refused", "unresolvable", "unbuildable", "excluded", "pending"]


class Span(Document):
    """A step of a build: seconds from the beginning of the cell to its start, and what it took."""

    text: str
    start: float
    seconds: float
    depth: int = 0


class Layer(Document):
    """A layer of the image: the bytes that travel and those that they unpack to."""

    title: str
    compressed: int
    unpacked: int


class Expected(Document):
    """How a cell is known to end, and why."""

    result: Result
    reason: str


class LastGood(Document):
    """The newest good run of a cell: when, its image, and its packages by `world name`."""

    finished: str
    image_id: str
    packages: dict[str, str]


class CellReport(Document):
    """One cell: its values, how it ended and why, and all that was seen on the way.

    `key` covers everything that the outcome depends on; `known` says that it was not run again; `place` is the engine;
    `packages` are those of the image, by `world name`; `last_good` is what an earlier run of the cell proved.
    """

    name: str
    recipe: str
    target: str
    values: Values
    state: State
    cause: str
    added: str | None = None
    expected: Expected | None = None
    known: bool = False
    key: str | None = None
    place: str | None = None
    minutes: float = 0.0
    started: float | None = None
    failure: str = ""
    verdict: Verdict | None = None
    layers: tuple[Layer, ...] = ()
    timeline: tuple[Span, ...] = ()
    packages: dict[str, str] = {}
    last_good: LastGood | None = None

    @property
    def ends_as_expected(self) -> bool:
        """Whether the cell ended as it should: good, or as the matrix says that it is known to."""
        if self.state in {"refused", "excluded"}:
            return self.expected is None or self.expected.result == self.state
        return self.state == (self.expected.result if self.expected else "good")

    @property
    def surprise(self) -> str | None:
        """What is not as expected, in a few words; None where nothing is."""
        if self.ends_as_expected:
            return None
        return f"expected {self.expected.result}" if self.expected else self.state


class MatrixReport(Document):
    """A matrix and what is known of each of its cells; `seconds` is the time of the whole run."""

    version: Literal[1] = 1
    name: str
    description: str = ""
    axes: tuple[str, ...]
    finished: str
    seconds: float = 0.0
    places: tuple[str, ...] = ()
    cells: tuple[CellReport, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many cells ended in each way, in the order in which ways to end are told."""
        states = [cell.state for cell in self.cells]
        return {state: states.count(state) for state in ORDER if state in states}


ORDER: tuple[State, ...] = (
    "good",
    "bad",
    "unverified",
    "unbuildable",
    "unresolvable",
    "refused",
    "pending",
    "excluded",
)


def with_last_good(report: MatrixReport, earlier: MatrixReport | None) -> MatrixReport:
    """Return a report whose cells know the newest good run before: that of an earlier report, or what it knew."""
    before = {cell.name: cell for cell in earlier.cells} if earlier else {}
    return report.model_copy(
        update={"cells": tuple(_with_last_good(cell, before.get(cell.name)) for cell in report.cells)}
    )


def _with_last_good(cell: CellReport, before: CellReport | None) -> CellReport:
    if before is None:
        return cell
    found = before.last_good
    if before.state == "good" and before.verdict is not None and before.key != cell.key:
        verdict = before.verdict
        found = LastGood(finished=verdict.finished, image_id=verdict.image_id, packages=before.packages)
    return cell.model_copy(update={"last_good": found})


def changes_since(good: dict[str, str], now: dict[str, str]) -> tuple[str, ...]:
    """Return what differs between two sets of packages, one line each."""
    lines = []
    for name in sorted({*good, *now}):
        old, new = good.get(name), now.get(name)
        if old != new:
            lines.append(
                f"+ {name} {new}" if old is None else f"- {name} {old}" if new is None else f"{name} {old} → {new}"
            )
    return tuple(lines)


def nearest_good(cell: CellReport, report: MatrixReport) -> CellReport | None:
    """Return the good cell of a report that shares the most values with a cell, the first of several."""
    good = [each for each in report.cells if each.state == "good" and each.packages and each.name != cell.name]

    def shared(other: CellReport) -> int:
        return sum(other.values.get(axis) == value for axis, value in cell.values.items())

    return max(good, key=shared, default=None)
