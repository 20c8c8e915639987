"""The matrix of stacks: list it, run it, hand it to CI, and tell what came out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.commands.complete import complete_cells
from builder.commands.state import json_option
from builder.commands.values import OUTPUT_FILE, OutputPath
from builder.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from builder.commands.state import State
    from builder.matrix.cellreport import MatrixReport
    from builder.matrix.cells import Cell
    from builder.matrix.grid import MatrixFile

FILE = click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=Path("matrix.yaml"))
CELL = click.option(
    "--cell",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_cells,
    help="Only this cell (again for more).",
)


@click.group()
def matrix() -> None:
    """Prove a grid of stacks from one file: every cell is a recipe with other values."""


@matrix.command(name="list")
@FILE
@json_option
@click.pass_obj
def list_cells(state: State, *, file: Path) -> int:
    """List the cells of a matrix: what is run, what is left out and why, what preflight refuses, what is known.

    Builds nothing and needs no engine. Example: envbuild matrix list matrix.yaml
    """
    from builder.matrix.report.text import cells_table

    report = _known(state, *_cells(file, ()))
    if state.console.json:
        state.console.document(report.to_plain())
    else:
        state.console.show(cells_table(report))
    return ExitCode.DONE


@matrix.command()
@FILE
@CELL
@click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="ENGINE",
    help="An engine: unix://, tcp://, ssh://, or a Docker context (again for more; default: DOCKER_HOST).",
)
@click.option("--again", is_flag=True, help="Run also what is known for the same content.")
@click.option("--output", type=OUTPUT_FILE, help="Write the report to this file as well.")
@json_option
@click.pass_obj
def run(
    state: State, *, file: Path, names: tuple[str, ...], engines: tuple[str, ...], again: bool, output: Path | None
) -> int:
    """Build and prove the cells of a matrix, on one engine or several; wheels and layers are made once.

    Cells share the cores and the memory of each host. An engine that dies gives its cells to the others. What was
    judged for the same content is not run again. Example: envbuild matrix run --engine default --engine builder-2

    Exit 0: every cell ended as expected, 8: one did not, 12: one could not be judged.
    """
    from builder.document import pretty_json, write_atomic
    from builder.matrix.engines import engine_names
    from builder.matrix.gridrun import run_alone, run_matrix
    from builder.matrix.report.text import closing_line

    source, cells = _cells(file, names)
    tools = state.tools()
    places = engine_names(engines, tools.settings)
    kept = None
    if len(cells) == 1 and names and len(places) == 1:
        report = run_alone(source, cells[0], places[0], tools, again=again)
    else:
        report, kept = run_matrix(source, cells, places, tools, again=again)
    if output is not None:
        write_atomic(output, pretty_json(report.to_plain()))
    if state.console.json:
        state.console.document(report.to_plain())
    result, sentence = closing_line(report)
    state.console.verdict(result, f"{sentence}{f'; the report: envbuild matrix report {kept}' if kept else ''}")
    return {"good": ExitCode.DONE, "bad": ExitCode.BAD}.get(result, ExitCode.UNVERIFIED)


@matrix.command()
@FILE
@click.option(
    "--output",
    type=OUTPUT_FILE,
    help="Append the outputs `first`, `rest`, `publish`, and `any-…` of each to this file, such as $GITHUB_OUTPUT.",
)
@click.option(
    "--report",
    "report_path",
    type=OUTPUT_FILE,
    help="Write what is known of all cells to this file, for the report at the end.",
)
@click.pass_obj
def github(state: State, *, file: Path, output: Path | None, report_path: Path | None) -> int:
    """Print the job matrices for GitHub Actions: cells that compile for others first, without those that are known.

    Use: `strategy: {matrix: "${{ fromJSON(needs.plan.outputs.first) }}"}` with `runs-on: ${{ matrix.runner }}`.
    """
    from builder.document import pretty_json, write_atomic
    from builder.matrix.github import job_matrices

    source, cells = _cells(file, ())
    report = _known(state, source, cells)
    jobs = job_matrices(source.matrix, cells, [cell.name for cell in report.cells if cell.known])
    if output is not None:
        with output.open("a", encoding="utf-8") as lines:
            lines.write(jobs.output_lines())
    if report_path is not None:
        write_atomic(report_path, pretty_json(report.to_plain()))
    state.console.document(jobs.to_plain())
    return ExitCode.DONE


@click.command()
@click.argument("reports", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--html", type=OUTPUT_FILE, help="Write one self-contained page.")
@click.option(
    "--markdown",
    type=OutputPath(dir_okay=False, allow_dash=True),
    help="Append Markdown to this file, such as $GITHUB_STEP_SUMMARY.",
)
@click.option("--junit", type=OUTPUT_FILE, help="Write JUnit XML.")
@click.option(
    "--earlier",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="An earlier report, whose good cells are compared with.",
)
@json_option
@click.pass_obj
def report(
    state: State,
    *,
    reports: tuple[Path, ...],
    html: Path | None,
    markdown: Path | None,
    junit: Path | None,
    earlier: Path | None,
) -> int:
    """Tell what came out of a matrix: as a page, as Markdown for a job summary, as JUnit for CI.

    REPORTS are files that `matrix run` and `matrix github` wrote, or folders of them: the parts of one matrix are put
    together. Example: envbuild report results/ --html report.html

    Exit 0: every cell ended as expected, 8: one did not, 12: one could not be judged.
    """
    from builder.document import write_atomic
    from builder.matrix.report.gathering import gather_reports
    from builder.matrix.report.junit import junit_text
    from builder.matrix.report.markdown import markdown_text
    from builder.matrix.report.page import page_text
    from builder.matrix.report.text import cells_table, closing_line

    told = gather_reports(reports, earlier)
    for path, text in ((html, page_text), (junit, junit_text)):
        if path is not None:
            write_atomic(path, text(told).encode())
            state.console.say(f"  wrote {path}")
    if markdown is not None:
        _append(markdown, markdown_text(told), state)
    if state.console.json:
        state.console.document(told.to_plain())
    elif not (html or markdown or junit):
        state.console.show(cells_table(told))
    result, sentence = closing_line(told)
    state.console.verdict(result, sentence)
    return {"good": ExitCode.DONE, "bad": ExitCode.BAD}.get(result, ExitCode.UNVERIFIED)


matrix.add_command(report)


def _append(path: Path, text: str, state: State) -> None:
    if str(path) == "-":
        state.console.output(text)
        return
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def _cells(path: Path, names: tuple[str, ...]) -> tuple[MatrixFile, tuple[Cell, ...]]:
    from builder.matrix.cells import cells_of, find_cells
    from builder.matrix.grid import read_matrix

    if not path.is_file():
        raise UsageError(f"{path}: no such matrix", remedy="give the path of a matrix, such as matrix.yaml")
    file = read_matrix(path)
    return file, find_cells(cells_of(file), names)


def _known(state: State, file: MatrixFile, cells: tuple[Cell, ...]) -> MatrixReport:
    """Return what is known of cells without running any."""
    from builder.matrix.cellrun import known_report, report_without_run
    from builder.matrix.gridrun import folder_of, report_of

    tools = state.tools()
    folder = folder_of(file, tools)
    found = [(known_report(cell, folder, tools) if cell.to_run else None) or report_without_run(cell) for cell in cells]
    return report_of(file.matrix, found)
