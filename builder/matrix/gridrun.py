"""Matrix -> report: what is known is not run again, all else is shared out over engines, a process for each cell."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from builder.document import key_of, pretty_json, write_atomic
from builder.errors import InvalidDocumentError
from builder.matrix.cellreport import CellReport, MatrixReport, with_last_good
from builder.matrix.cellrun import failed_report, known_report, report_without_run, run_cell
from builder.matrix.engines import connect_to, gather_crew
from builder.matrix.schedule import Job, Need, Schedule, lack_of_gpus
from builder.matrix.variant import edited
from builder.matrix.warm import CellProcesses
from builder.matrix.waves import apart, compiled_first, wheels_key
from builder.verify.levels import gpus_needed
from builder.verify.smoke import memory_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builder.console import Step
    from builder.errors import EngineError
    from builder.matrix.cells import Cell
    from builder.matrix.grid import Matrix, MatrixFile
    from builder.matrix.schedule import Seat
    from builder.tools import Tools

FOLDER = "matrices"
REPORT = "report.json"
COMPILE = Need(cores=4, memory=8 << 30)  # as much memory as a compilation may take, see build/wheels.py


@dataclass(frozen=True, kw_only=True, slots=True)
class CellJob(Job):
    """What is to do for a cell: to run it (`cell`), or to compile first for all that compile the same (`wheels`)."""

    cell: Cell
    kind: Literal["cell", "wheels"]


def folder_of(file: MatrixFile, tools: Tools) -> Path:
    """Return where the variants and the report of a matrix are: in the store, the same for the same file."""
    key = key_of(str(file.path.resolve()))[:12]
    return tools.store.root / FOLDER / f"{file.matrix.name}-{key}"


def run_matrix(
    file: MatrixFile, cells: Sequence[Cell], engines: Sequence[str], tools: Tools, *, again: bool = False
) -> tuple[MatrixReport, Path]:
    """Run cells of a matrix on engines; return the report and the file that it is written to after every cell.

    Stopped and started again it goes on: what was judged for the same content is known. Raise EngineError if no
    engine answers at the start; one that dies later gives its cells to the others.
    """
    folder = folder_of(file, tools)
    with tools.store.exclusive(f"matrix-{folder.name}"):
        going = _Run(file=file, cells=cells, folder=folder, tools=tools, earlier=read_report(folder / REPORT))
        going.look_up(again=again)
        if going.open:
            going.go(engines)
        return going.keep(), folder / REPORT


def run_alone(file: MatrixFile, cell: Cell, engine: str, tools: Tools, *, again: bool = False) -> MatrixReport:
    """Run one cell in this process on one engine, unless it is known; raise EngineError if the engine fails."""
    start = time.monotonic()
    folder = folder_of(file, tools)
    report = known_report(cell, folder, tools) if cell.to_run and not again else None
    if report is None and cell.to_run:
        (seat,) = gather_crew((engine,), tools.settings, tools.console.warn).seats
        lack = lack_of_gpus(need_of(cell), (seat,))
        own = replace(tools, connect=lambda: connect_to(engine, replace(tools.settings, gpus=seat.gpus)))
        report = failed_report(cell, lack, place=None) if lack else run_cell(cell, folder, own, place=engine)
    return report_of(
        file.matrix, [report or report_without_run(cell)], seconds=time.monotonic() - start, places=(engine,)
    )


def report_of(
    matrix: Matrix, cells: Sequence[CellReport], *, seconds: float = 0.0, places: Sequence[str] = ()
) -> MatrixReport:
    """Return the report of a matrix over these cells, finished now."""
    return MatrixReport(
        name=matrix.name,
        description=matrix.description,
        axes=tuple(matrix.axes),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(seconds, 1),
        places=tuple(places),
        cells=tuple(cells),
    )


def read_report(path: Path) -> MatrixReport | None:
    """Return the report in a file, None where there is none or only a damaged one."""
    try:
        return MatrixReport.from_json(path.read_bytes(), source=str(path))
    except (FileNotFoundError, InvalidDocumentError):
        return None


def need_of(cell: Cell) -> Need:
    """Return what a cell takes of a host once its wheels are compiled: the memory and the GPUs of its proof."""
    recipe = edited(cell.source, cell.edits).recipe
    return Need(cores=1, memory=memory_of(recipe.smoke), gpus=gpus_needed(recipe))


@dataclass(kw_only=True)
class _Run:
    """One run of a matrix, and all reports so far."""

    file: MatrixFile
    cells: Sequence[Cell]
    folder: Path
    tools: Tools
    earlier: MatrixReport | None
    reports: dict[str, CellReport] = field(default_factory=dict)
    places: tuple[str, ...] = ()
    start: float = field(default_factory=time.monotonic)
    _processes: CellProcesses = field(default_factory=CellProcesses)

    @property
    def open(self) -> list[Cell]:
        """The cells that must be run."""
        return [cell for cell in self.cells if self.reports[cell.name].state == "pending"]

    def look_up(self, *, again: bool) -> None:
        """Find what is known of every cell, and say it."""
        for cell in self.cells:
            known = known_report(cell, self.folder, self.tools) if cell.to_run and not again else None
            self.reports[cell.name] = report = known or report_without_run(cell)
            if report.state != "pending":
                self._say(report)

    def go(self, names: Sequence[str]) -> None:
        """Run what is not known, on all engines that answer."""
        settings, console = self.tools.settings, self.tools.console
        crew = gather_crew(names, settings, console.warn)
        self.places = tuple(seat.name for seat in crew.seats)
        with console.step(f"{len(self.open)} cells on {len(crew.seats)} engines") as step:
            schedule = Schedule[CellJob, CellReport | None](
                jobs=self._jobs(),
                seats=crew.seats,
                execute=lambda job, seat, gpus: self._execute(job, seat, gpus, step),
                is_alive=crew.is_alive,
                give_up=self._given_up,
                on_end=lambda _, report: self._ended(report),
                on_stop=self._processes.ask_to_end,  # each cell removes its containers
                on_lost=lambda seat, error: console.warn(f"{seat.name} is lost, its cells move on: {error.message}"),
            )
            schedule.run()

    def keep(self) -> MatrixReport:
        """Write the report of all cells so far, and return it."""
        cells = [self.reports[cell.name] for cell in self.cells]
        report = report_of(self.file.matrix, cells, seconds=time.monotonic() - self.start, places=self.places)
        report = with_last_good(report, self.earlier)
        write_atomic(self.folder / REPORT, pretty_json(report.to_plain()))
        return report

    def _jobs(self) -> list[CellJob]:
        """Return what is to do: to compile once what several cells share, then the cells, each after its wheels."""
        first = compiled_first(self.open)
        compiling = {
            key: CellJob(name=f"wheels of {cell.name}", need=COMPILE, cell=cell, kind="wheels")
            for key, cell in first.items()
        }
        jobs = [*compiling.values()]
        for cell in apart(self.open):
            wheels = compiling.get(wheels_key(cell) or "")
            after = wheels.name if wheels else None
            jobs.append(CellJob(name=cell.name, need=need_of(cell), after=after, cell=cell, kind="cell"))
        return jobs

    def _given_up(self, job: CellJob, error: EngineError) -> CellReport | None:
        return None if job.kind == "wheels" else failed_report(job.cell, error, place=None)

    def _execute(self, job: CellJob, seat: Seat, gpus: tuple[str, ...], step: Step) -> CellReport | None:
        console, cell = self.tools.console, job.cell

        def on_line(line: str) -> None:
            if console.verbose:
                console.say(f"  [{cell.name}] {line}")
            else:
                step.detail(f"{self._done()} of {len(self.cells)} done; {cell.name}: {line.strip()}")

        report = self._processes.run(
            cell,
            self.folder,
            replace(self.tools.settings, gpus=gpus),
            engine=seat.name,
            on_line=on_line,
            verbose=console.verbose,
            only_wheels=job.kind == "wheels",
        )
        return None if job.kind == "wheels" else report

    def _done(self) -> int:
        return sum(report.state != "pending" for report in self.reports.values())

    def _ended(self, report: CellReport | None) -> None:
        if report is None:  # wheels were compiled, or could not be, which their cells tell
            return
        self.reports[report.name] = report
        self._say(report)
        self.keep()

    def _say(self, report: CellReport) -> None:
        where = "known" if report.known else f"{report.minutes * 60:.1f} s on {report.place}" if report.place else ""
        self.tools.console.verdict(report.state, f"{report.name}: {report.cause}{f' ({where})' if where else ''}")
