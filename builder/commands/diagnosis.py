"""Logs -> causes: what went wrong first, why, and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.commands.complete import complete_classes, complete_recipes
from builder.commands.state import RECIPE_PATH, json_option
from builder.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from builder.commands.state import State
    from builder.diagnose import Diagnosis

LOG = click.Path(path_type=Path, dir_okay=False, allow_dash=True)
FINDINGS = Path("findings")


@click.command()
@click.argument("logs", nargs=-1, type=LOG)
@click.option("--recipe", type=RECIPE_PATH, shell_complete=complete_recipes, help="The recipe that the logs are of.")
@click.option(
    "--explain",
    "explained",
    metavar="CLASS",
    shell_complete=complete_classes,
    help="Print what is known of a class of failures.",
)
@json_option
@click.pass_obj
def diagnose(state: State, *, logs: tuple[Path, ...], recipe: Path | None, explained: str | None) -> int:
    """Read logs (plain or gzip; `-`: standard input) and say what went wrong first, why, and what to change.

    With --recipe its pins, its lock and its GPU count: the same line means different things on different stacks.
    """
    from builder.diagnose import explain, render

    if explained is not None:
        if logs or recipe is not None:
            raise UsageError("--explain reads no log", remedy="give either --explain CLASS, or logs to diagnose")
        text = explain(explained, findings=_findings())
        if state.console.json:
            state.console.document({"class": explained, "text": text})
        else:
            state.console.output(text)
        return ExitCode.DONE
    if not logs:
        raise UsageError("which log?", remedy="give the path of a log, or `-` for standard input")
    diagnosis = _diagnosis(state, logs, recipe)
    if state.console.json:
        state.console.document(diagnosis.reported.to_plain())
    else:
        state.console.output(render(diagnosis))
    return ExitCode.DONE


def _diagnosis(state: State, logs: tuple[Path, ...], recipe: Path | None) -> Diagnosis:
    from builder.diagnose import diagnose_files
    from builder.diagnose.stage import findings_of

    if recipe is None:
        return diagnose_files(logs, findings=_findings(), warn=state.console.warn)
    from builder.lock.lockfile import read_lock
    from builder.recipe.source import read_recipe
    from builder.recipe.targets import find_target
    from builder.recipe.workspace import workspace_of

    source = read_recipe(recipe)
    return diagnose_files(
        logs,
        recipe=source.recipe,
        lock=read_lock(workspace_of(source).lock, source.recipe.name),
        target=find_target(source.recipe.target.gpu).capability,
        findings=findings_of(source),
        warn=state.console.warn,
    )


def _findings() -> Path | None:
    """Return the folder of the user's own findings, if the working tree has one."""
    return FINDINGS if FINDINGS.is_dir() else None
