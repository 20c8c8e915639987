"""One cell on one engine: the outcome of its variant with all that a report tells of it, remembered and shared."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.build.assembly import find_image
from builder.build.stage import find_plan
from builder.console import Console
from builder.document import pretty_json
from builder.errors import InvalidDocumentError
from builder.lock.changes import packages_of
from builder.lock.stage import previous_lock
from builder.matrix.cellreport import CellReport, Expected, Layer, Span
from builder.matrix.trial import Bench, compile_variant, trial_key, try_variant
from builder.recipe.workspace import workspace_of
from builder.registry.share import Shared
from builder.verify.record import read_verdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.console import Step
    from builder.errors import EnvbuildError
    from builder.lock.model import Lock
    from builder.matrix.cells import Cell
    from builder.matrix.outcome import Outcome
    from builder.recipe.source import RecipeFile
    from builder.store import Store
    from builder.tools import Tools

CELL = Shared(kind="cell", fields={"report": str}, file="report")
"""A judged cell in the store and in the registry that machines share: the key is that of its variant."""


def report_without_run(cell: Cell) -> CellReport:
    """Return the report of a cell before it is run, or of one that is not: left out, or refused."""
    state, cause = "pending", "not run yet"
    if cell.excluded is not None:
        state, cause = "excluded", cell.excluded
    elif cell.refused is not None:
        state, cause = "refused", cell.refused
    expected = cell.expected
    return CellReport.model_validate(
        {
            "name": cell.name,
            "recipe": cell.source.recipe.name,
            "target": cell.gpu,
            "values": dict(cell.values),
            "state": state,
            "cause": cause,
            "added": cell.added,
            "expected": Expected(result=expected.result, reason=expected.reason) if expected else None,
        }
    )


def bench_of(cell: Cell, folder: Path) -> Bench:
    """Return where a cell is tried: the matrix never touches the lock and the verdict of the recipe itself."""
    return Bench(source=cell.source, root=folder / cell.source.recipe.name)


def known_report(cell: Cell, folder: Path, tools: Tools) -> CellReport | None:
    """Return the report of an earlier run of the same content, on this machine or on one that shares with it."""
    try:
        key = trial_key(bench_of(cell, folder), cell.edits)
    except InvalidDocumentError:
        return None
    report = _kept(key, tools.store)
    if report is None:
        tools.share.fetch_results(CELL, [key])
        report = _kept(key, tools.store)
    if report is None:
        return None
    now = report_without_run(cell)
    own = {"name": now.name, "values": now.values, "added": now.added, "expected": now.expected, "known": True}
    return report.model_copy(update=own)


def _kept(key: str, store: Store) -> CellReport | None:
    record = store.result(CELL.kind, key)
    if record is None or not store.has(record["report"]):
        return None
    try:
        return CellReport.from_json(store.path(record["report"]).read_bytes(), source=f"cell {key}")
    except InvalidDocumentError:
        return None


def compile_cell(cell: Cell, folder: Path, tools: Tools) -> None:
    """Compile the wheels of a cell for all cells that share them; a failure is remembered, and theirs to tell."""
    compile_variant(bench_of(cell, folder), cell.edits, tools)


def run_cell(cell: Cell, folder: Path, tools: Tools, *, place: str) -> CellReport:
    """Lock, build and prove a cell; remember what was judged. Raise what says nothing about the cell: no engine."""
    bench = bench_of(cell, folder)
    console = Recorder(tools.console)
    start = time.time()
    outcome = try_variant(bench, cell.edits, replace(tools, console=console, connect=lambda: tools.engine))
    report = _reported(cell, bench.variant(cell.edits), outcome, tools.store)
    report = report.model_copy(
        update={"timeline": tuple(console.spans), "place": place, "started": start, "minutes": outcome.minutes}
    )
    if outcome.is_judged or outcome.result == "unbuildable":
        key = trial_key(bench, cell.edits)
        report = report.model_copy(update={"key": key})
        tools.store.keep_result(CELL.kind, key, {"report": tools.store.add_bytes(pretty_json(report.to_plain()))})
        tools.share.share_results(CELL, [key])
    return report


def _reported(cell: Cell, variant: RecipeFile, outcome: Outcome, store: Store) -> CellReport:
    report = report_without_run(cell)
    lock = previous_lock(variant)
    packages = {
        f"{each.world} {each.name}": each.state.version or "local"
        for each in (packages_of(lock) if lock else ())
        if each.part == "image"
    }
    verdict = read_verdict(workspace_of(variant).verdict) if outcome.image_id is not None else None
    return report.model_copy(
        update={
            "state": outcome.result,
            "cause": outcome.cause,
            "failure": outcome.failure,
            "verdict": verdict,
            "layers": _layers(variant, lock, store) if lock and verdict else (),
            "packages": packages,
        }
    )


def _layers(variant: RecipeFile, lock: Lock, store: Store) -> tuple[Layer, ...]:
    plan = find_plan(variant, lock, store)
    image = find_image(plan, store) if plan else None
    return tuple(
        Layer(title=each.title, compressed=each.blob.size, unpacked=each.blob.unpacked)
        for each in (image.layers if image else ())
    )


def failed_report(cell: Cell, error: EnvbuildError, *, place: str | None) -> CellReport:
    """Return the report of a cell that nothing is known of because the machine failed."""
    return report_without_run(cell).model_copy(update={"state": "unverified", "cause": error.message, "place": place})


class Recorder(Console):
    """A console that notes when each step began and what it took."""

    def __init__(self, outer: Console) -> None:
        super().__init__(json=outer.json, verbose=outer.verbose)
        self._outer = outer
        self._start = time.monotonic()
        self._depth = 0
        self.spans: list[Span] = []

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[Step]:
        """Show a step on the outer console and note its time."""
        start = time.monotonic()
        depth, self._depth = self._depth, self._depth + 1
        try:
            with self._outer.step(text) as step:
                yield step
        finally:
            self._depth = depth
            seconds = time.monotonic() - start
            self.spans.append(
                Span(text=text, start=round(start - self._start, 2), seconds=round(seconds, 2), depth=depth)
            )

    def _line(self, markup: str) -> None:
        self._outer._line(markup)  # noqa: SLF001 - a console before another one
