"""Many variants of a recipe: search a good one, or find the difference that broke one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from builder.commands.complete import complete_sides
from builder.commands.state import RECIPE, SAVE_FINDING, json_option
from builder.commands.values import Limit
from builder.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    from builder.commands.state import State
    from builder.matrix.bisecting import Bisection
    from builder.matrix.searching import Budget
    from builder.tools import Tools

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
        type=Limit(min=0, min_open=True, max=1e6),
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
    help="Values to choose from: an option of `serve`, a variable, a package of the stack, overrides.PACKAGE, "
    "or a dotted path.",
)
@budget_options
@click.option("--smallest", is_flag=True, help="At the end leave out every edit that is not needed.")
@click.option("--save-finding", is_flag=True, help=SAVE_FINDING)
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
    from builder.diagnose.cures import save_finding as keep_finding
    from builder.matrix.ledger import ledger_lines
    from builder.matrix.searching import Budget
    from builder.matrix.stage import finding_from, search_recipe
    from builder.matrix.variant import axes_of
    from builder.recipe.source import read_recipe
    from builder.recipe.workspace import workspace_of

    source = read_recipe(recipe)
    factors = axes_of(source, axes)
    budget = Budget(builds=builds, minutes=minutes)
    tools = state.tools()
    ledger, file = search_recipe(source, tools, axes=factors, budget=budget, smallest=smallest)
    if state.console.json:
        state.console.document({**ledger.to_plain(), "file": str(file)})
    else:
        state.console.output("\n".join(ledger_lines(ledger)))
    state.console.verdict(ledger.end, f"{ledger.sentence}; the ledger is in {file}")
    finding = finding_from(ledger, source, tools.store)
    if finding is not None and save_finding:
        state.console.say(f"  wrote {keep_finding(finding, workspace_of(source).root)}: `diagnose` knows the cure now")
    elif finding is not None:
        state.console.say(
            "  what cured it is offered as a finding: run it again with --save-finding, it takes a second"
        )
    return _ENDS[ledger.end]


@click.command()
@click.argument(
    "what",
    nargs=-1,
    metavar="GOOD BAD | RECIPE PACKAGE GOOD_COMMIT BAD_COMMIT",
    shell_complete=complete_sides,
)
@budget_options
@json_option
@click.pass_obj
def bisect(state: State, *, what: tuple[str, ...], builds: int | None, minutes: float | None) -> int:
    """Find the smallest difference that breaks a stack: between two locks, or between two commits of a package.

    GOOD and BAD are recipes, folders of locks, or either at a git revision. What does not compile is not judged.
    Example: envbuild bisect HEAD~3:lockfiles/x lockfiles/x

    Exit 0: found, 12: the budget ended.
    """
    from builder.matrix.searching import Budget

    tools, budget = state.tools(), Budget(builds=builds, minutes=minutes)
    found, file = _bisection(what, tools, budget)
    if state.console.json:
        state.console.document({**found.to_plain(), "file": str(file)})
    else:
        state.console.output("\n".join(_bisection_lines(found)))
    state.console.verdict(found.end, f"{found.sentence}; all runs are in {file}")
    return _ENDS[found.end]


def _bisection(what: tuple[str, ...], tools: Tools, budget: Budget) -> tuple[Bisection, Path]:
    from pathlib import Path

    from builder.errors import UsageError
    from builder.matrix.bisect_stage import bisect_commits, bisect_locks, differing_commit
    from builder.matrix.sides import read_side
    from builder.recipe.source import read_recipe

    if len(what) == 4:
        recipe, package, first, last = what
        return bisect_commits(read_recipe(Path(recipe)), package, tools, budget, good=first, bad=last)
    if len(what) != 2:
        raise UsageError("give a good and a bad lock, or a recipe, a package, a good and a bad commit")
    good, bad = (read_side(name, tools) for name in what)
    commits = differing_commit(good, bad)
    if commits is not None:
        package, first, last = commits
        return bisect_commits(bad.source, package, tools, budget, good=first, bad=last)
    return bisect_locks(good, bad, tools, budget)


def _bisection_lines(found: Bisection) -> Iterator[str]:
    for step in found.steps:
        known = " (known)" if step.known else ""
        yield f"{step.number:3}. {step.what}: {step.judged}{known}: {step.outcome.cause}"
    for name, outcome in (("good", found.good), ("bad", found.bad)):
        if outcome is not None:
            yield f"  {name}: lock {str(outcome.lock_digest)[:12]}, image {outcome.image_id}: {outcome.cause}"
    yield from (f"  {line}" for line in found.difference)
    yield from (f"  not judged: {line}" for line in found.unjudged)
