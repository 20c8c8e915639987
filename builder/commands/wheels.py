"""`wheels`: the packages of a recipe that are compiled, as wheels."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import click

from builder.commands.state import RECIPE, RETRY, json_option
from builder.commands.values import OUTPUT_FOLDER
from builder.errors import ExitCode, UsageError
from builder.settings import bytes_of, count_of

if TYPE_CHECKING:
    from pathlib import Path

    from builder.build.wheelreport import WheelReport
    from builder.commands.state import State
    from builder.recipe.source import RecipeFile

EPILOG = "\b\nExample: envbuild wheels recipes/quickstart.yaml --memory 8g --export ./wheels"


@click.command(epilog=EPILOG)
@RECIPE
@RETRY
@click.option("--jobs", metavar="N", help="Compile at most N files at a time (default: what memory and cores allow).")
@click.option("--memory", metavar="SIZE", help="Let a compilation hold at most this much, such as 8g.")
@click.option("--push", is_flag=True, help="Put the finished wheels into the registry that ENVBUILD_SHARE names.")
@click.option("--pull", is_flag=True, help="Take finished wheels from that registry; compile nothing.")
@click.option(
    "--here",
    metavar="PYTHON",
    help="Compile without a container, with this Python (it must have torch and `build`) and this machine's compilers. "
    "Such a wheel is for this machine: no image takes it, and it is not shared.",
)
@click.option("--fetched", is_flag=True, help="Examine also the wheels that the lock fetches.")
@click.option("--export", "folder", type=OUTPUT_FOLDER, help="Put the compiled wheels into a folder for --find-links.")
@click.option("--index", type=OUTPUT_FOLDER, help="Put the compiled wheels into a simple index (PEP 503).")
@json_option
@click.pass_obj
def wheels(
    state: State,
    *,
    recipe: Path,
    retry: bool,
    jobs: str | None,
    memory: str | None,
    push: bool,
    pull: bool,
    here: str | None,
    fetched: bool,
    folder: Path | None,
    index: Path | None,
) -> int:
    """Compile what a locked recipe compiles, and say what is in each wheel.

    Each wheel is kept under a key over all that can change its bytes: the same key is never compiled twice. Exit 7 if
    a wheel carries device code, but none that the target runs.
    """
    from builder.build.wheelindex import export_folder, export_index
    from builder.build.wheelreport import report_fetched, report_made
    from builder.build.wheelstage import compile_here, compile_recipe, fetch_locked
    from builder.lock.stage import locked_recipe
    from builder.recipe.source import read_recipe

    source = read_recipe(recipe)
    locked = locked_recipe(source)
    tools = state.tools(
        retry=retry, jobs=count_of(jobs, "--jobs"), memory=bytes_of(memory, "--memory"), share_push=push or None
    )
    if (push or pull) and tools.settings.share is None:
        raise UsageError("--push and --pull: to which registry?", remedy="set ENVBUILD_SHARE to host/repository")
    if here is not None and (push or pull):
        raise UsageError("--here makes wheels for this machine alone: it goes with neither --push nor --pull")
    if here is not None:
        if shutil.which(here) is None:
            raise UsageError(f"--here: there is no program {here}", remedy="give a Python that has torch and `build`")
        made = compile_here(source, locked, tools, here)
    else:
        made = compile_recipe(source, locked, tools, compiling=not pull)
    if fetched:
        fetch_locked(source, locked, tools)
    built = tuple(one.wheel for one in made)
    if folder is not None:
        export_folder(built, folder, tools.store)
    if index is not None:
        export_index(built, index, tools.store)
    others = tuple(report_fetched(wheel, tools.store) for wheel in (locked.wheels if fetched else ()))
    return _report(state, source, (*(report_made(one, tools.store) for one in made), *others))


def _report(state: State, source: RecipeFile, reports: tuple[WheelReport, ...]) -> int:
    """Show what is in the wheels; the exit code says whether the target runs what was compiled."""
    from builder.build.wheelscan import idle_failure
    from builder.recipe.targets import find_target

    target = find_target(source.recipe.target.gpu)
    if state.console.json:
        plain = [report.to_plain(target.capability) for report in reports]
        state.console.document({"recipe": source.recipe.name, "target": target.capability, "wheels": plain})
    else:
        state.console.output("\n".join(line for report in reports for line in report.lines(target.capability)))
    idle = [idle_failure(report.scan, target.capability, target.product) for report in reports if report.key]
    failures = [failure for failure in idle if failure is not None]
    for failure in failures:
        state.console.error(failure)
    return failures[0].exit_code if failures else ExitCode.DONE
