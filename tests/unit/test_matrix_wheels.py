"""What cells compile alike: compiled once before them, by a job of its own that is no cell."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from builder.console import Console, Step
from builder.errors import BuildFailedError, EngineError
from builder.matrix import trial, warm
from builder.matrix.cellrun import compile_cell, report_without_run
from builder.matrix.cells import cells_of
from builder.matrix.grid import read_matrix
from builder.matrix.gridrun import COMPILE, _Run
from builder.matrix.schedule import Seat
from builder.recipe.workspace import workspace_of
from builder.settings import settings_from
from builder.store import Store
from builder.tools import Tools
from tests.fakes import FakeEngine

if TYPE_CHECKING:
    from pathlib import Path

    from builder.errors import EnvbuildError
    from builder.matrix.cellreport import CellReport
    from builder.matrix.cells import Cell
    from builder.recipe.source import RecipeFile

RECIPE = """\
version: 1
name: stack
target: {gpu: h200}
base: {debian: trixie}
python: "3.13"
cuda: "13.1"
stack:
  kernels: {git: "https://example.org/k.git", commit: "COMMIT", build: {}}
smoke: {require: [static]}
"""
MATRIX = """\
version: 1
name: stacks
recipe: stack.yaml
axes:
  as-of: ["2026-01-01", "2026-01-02"]
"""
SEAT = Seat(name="here", host="here", cores=4, memory=8 << 30)


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return Tools(settings=settings_from({}), store=Store(tmp_path / "store"), console=Console(), connect=FakeEngine)


@pytest.fixture
def run(tmp_path: Path, tools: Tools) -> _Run:
    (tmp_path / "stack.yaml").write_text(RECIPE.replace("COMMIT", "a" * 40))
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    file = read_matrix(tmp_path / "matrix.yaml")
    going = _Run(file=file, cells=cells_of(file), folder=tmp_path / "run", tools=tools, earlier=None)
    going.reports = {cell.name: report_without_run(cell) for cell in going.cells}
    return going


def test_cells_wait_for_the_job_that_compiles_for_them(run: _Run) -> None:
    compiling, *cells = run._jobs()
    assert (compiling.name, compiling.need, compiling.after) == ("wheels of 2026-01-01", COMPILE, None)
    assert {job.name: job.after for job in cells} == dict.fromkeys(("2026-01-01", "2026-01-02"), compiling.name)


def test_a_job_of_wheels_compiles_and_is_no_report_of_a_cell(run: _Run) -> None:
    asked: list[tuple[str, bool]] = []

    class Processes:
        def run(self, cell: Cell, *_: Any, only_wheels: bool, **__: Any) -> CellReport:
            asked.append((cell.name, only_wheels))
            return report_without_run(cell).model_copy(update={"state": "unverified"})

    run._processes = Processes()  # type: ignore[assignment]
    jobs = run._jobs()
    ended = {job.name: run._execute(job, SEAT, (), Step("", None)) for job in jobs}
    assert asked == [("2026-01-01", True), ("2026-01-01", False), ("2026-01-02", False)]
    assert [name for name, report in ended.items() if report is None] == ["wheels of 2026-01-01"]
    run._ended(None)
    assert {report.state for report in run.reports.values()} == {"pending"}


def test_wheels_that_no_engine_could_compile_are_told_by_their_cells(run: _Run) -> None:
    wheels, cell, _ = run._jobs()
    assert run._given_up(wheels, EngineError("gone")) is None
    report = run._given_up(cell, EngineError("gone"))
    assert report is not None
    assert (report.name, report.state, report.cause) == ("2026-01-01", "unverified", "gone")


def test_a_cell_compiles_with_its_edits_and_leaves_the_lock_of_its_recipe_alone(
    run: _Run, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[RecipeFile] = []
    monkeypatch.setattr(trial, "_lock", lambda _variant, _base, _tools: "lock")
    monkeypatch.setattr(trial, "compile_recipe", lambda variant, _lock, _tools: compiled.append(variant))
    compile_cell(run.cells[1], run.folder, tools)
    (variant,) = compiled
    assert variant.recipe.as_of == "2026-01-02"
    assert workspace_of(variant).lock.is_relative_to(run.folder / "stack")


@pytest.mark.parametrize(
    ("error", "state", "cause"),
    [
        (None, "pending", "not run yet"),
        (BuildFailedError("kernels does not compile"), "unverified", "kernels does not compile"),
    ],
)
def test_the_process_of_wheels_answers_with_how_the_compilation_ended(  # noqa: PLR0917
    error: EnvbuildError | None,
    state: str,
    cause: str,
    run: _Run,
    tools: Tools,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail_with(error, monkeypatch)
    answer = json.loads(warm._answer(run.cells[0], run.folder, tools, "here", only_wheels=True))
    assert (answer["name"], answer["state"], answer["cause"]) == ("2026-01-01", state, cause)


def test_an_engine_that_fails_while_it_compiles_is_no_answer(
    run: _Run, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(EngineError("the engine is gone"), monkeypatch)
    answer = warm._answer(run.cells[0], run.folder, tools, "here", only_wheels=True)
    with pytest.raises(EngineError, match="the engine is gone"):
        warm._report_in(answer, run.cells[0])


def fail_with(error: EnvbuildError | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_(_cell: Cell, _folder: Path, _tools: Tools) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(warm, "compile_cell", compile_)
