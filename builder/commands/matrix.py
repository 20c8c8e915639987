"""Many variants of a recipe: search a good one, or find the difference that broke one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from builder.commands.state import RECIPE, json_option
from builder.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from builder.commands.state import State

_ENDS = {
    "good": ExitCode.DONE,
    "found": ExitCode.DONE,
    "none good": ExitCode.BAD,
    "budget ended": ExitCode.UNVERIFIED,
    "unverified": ExitCode.UNVERIFIED,
}


def budget_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options `--builds` and `--minutes`."""
    builds = click.option(
        "--builds", type=click.IntRange(min=1), metavar="N", help="Stop before the build after this many (exit 12)."
    )
    minutes = click.option(
        "--minutes",
        type=click.FloatRange(min=0, min_open=True),
        metavar="M",
        help="Begin no run after this many minutes of runs (exit 12).",
    )
    return builds(minutes(function))


@click.command()
@RECIPE
@click.option(
    "--axis",
    "axes",
    multiple=True,
    metavar="NAME=VALUE,…",
    help="Values to choose from: an option of `serve`, a variable, a package of the stack, or a dotted path.",
)
@budget_options
@click.option("--smallest", is_flag=True, help="At the end leave out every edit that is not needed.")
@click.option("--save-finding", is_flag=True, help="Write what cured the failure to findings/, for `diagnose`.")
@json_option
@click.pass_obj
def search(
    state: State,
    *,
    recipe: Path,
    axes: tuple[str, ...],
    builds: int | None,
    minutes: float | None,
    smallest: bool,
    save_finding: bool,
) -> int:
    """Search a good variant of a bad recipe: from the edits that diagnosis proposes, or from given axes.

    Settings of the server come first, they cost no build. Every failure narrows what is tried next. Stopped and
    started again it goes on. Example: envbuild search RECIPE --axis kv-cache-dtype=bf16,fp8 --axis sglang=0.5.9,0.5.10

    Exit 0: a good one was found, 8: none is good, 12: the budget ended.
    """
    from builder.matrix.ledger import ledger_lines
    from builder.matrix.searching import Budget
    from builder.matrix.stage import search_recipe
    from builder.matrix.variant import axes_of
    from builder.recipe.source import read_recipe

    source = read_recipe(recipe)
    factors = axes_of(source, axes)
    budget = Budget(builds=builds, minutes=minutes)
    ledger, file = search_recipe(source, state.tools(), axes=factors, budget=budget, smallest=smallest)
    if state.console.json:
        state.console.document({**ledger.to_plain(), "file": str(file)})
    else:
        state.console.output("\n".join(ledger_lines(ledger)))
    state.console.verdict(ledger.end, f"{ledger.sentence}; the ledger is in {file}")
    return _ENDS[ledger.end]
