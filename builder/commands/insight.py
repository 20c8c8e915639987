"""What is known: the verdicts of recipes, what an image is made of, what differs, who wants a package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.commands.complete import complete_packages, complete_recipes, complete_targets
from builder.commands.state import RECIPE, RECIPE_PATH, connect_engine, json_option
from builder.errors import ExitCode, InvalidDocumentError, UsageError

if TYPE_CHECKING:
    from builder.commands.state import State


@click.command()
@click.argument("recipes", nargs=-1, type=RECIPE_PATH, shell_complete=complete_recipes)
@click.option(
    "--target", metavar="GPU", shell_complete=complete_targets, help="Only recipes for this GPU, by its id in a recipe."
)
@click.option("--sizes", is_flag=True, help="Show what one recipe's image is made of, biggest first.")
@json_option
@click.pass_obj
def status(state: State, *, recipes: tuple[Path, ...], target: str | None, sizes: bool) -> int:
    """Show the verdict of recipes, and what each check saw (without a name: one line for each in recipes/).

    With --sizes: the bytes of every package and layer of one image, and libraries that are in it twice.
    """
    if sizes:
        return _sizes(state, recipes)
    from builder.status import status_table, statuses_of

    rows = statuses_of(_asked(recipes, target), state.tools().store, target)
    if state.console.json:
        state.console.document([row.to_plain() for row in rows])
    else:
        state.console.show(status_table(rows, details=bool(recipes)))
    return InvalidDocumentError.exit_code if any(row.result == "invalid" for row in rows) else ExitCode.DONE


def _asked(recipes: tuple[Path, ...], target: str | None) -> tuple[Path, ...]:
    from builder.recipe.source import refuse_no_recipe
    from builder.recipe.targets import find_nearest_target, targets

    for path in recipes:
        refuse_no_recipe(path)
    paths = recipes or tuple(sorted(Path("recipes").rglob("*.yaml")))
    if not paths:
        raise UsageError("there are no recipes here", remedy="give the path of a recipe, or go to the project's folder")
    if target is not None and target not in targets():
        raise UsageError(f"--target: no GPU {target!r} is known", remedy=find_nearest_target(target))
    return paths


def _sizes(state: State, recipes: tuple[Path, ...]) -> int:
    from builder.build.sizes import measure_image
    from builder.build.sizes_table import sizes_table
    from builder.lock.stage import locked_recipe
    from builder.recipe.source import read_recipe

    if len(recipes) != 1:
        raise UsageError("--sizes shows one image", remedy="give one recipe: envbuild status RECIPE --sizes")
    source = read_recipe(recipes[0])
    tools = state.tools()
    report = measure_image(source, locked_recipe(source), tools.store)
    if state.console.json:
        state.console.document(report.to_plain())
    else:
        state.console.show(sizes_table(report))
    for line in report.warnings:
        state.console.warn(line)
    return ExitCode.DONE


@click.command()
@click.argument("a", shell_complete=complete_recipes)
@click.argument("b", shell_complete=complete_recipes)
@json_option
@click.pass_obj
def diff(state: State, *, a: str, b: str) -> int:
    """Show what differs between A and B: packages, versions and sizes; of images also layers and settings.

    Each is a recipe (its lock), the folder of a lock, either at a git revision (REV:recipes/x.yaml), or an image of the
    local engine.
    """
    from builder.compare.comparison import compare
    from builder.compare.operands import read_operand
    from builder.compare.table import comparison_table

    tools = state.tools()
    comparison = compare(read_operand(a, tools, Path()), read_operand(b, tools, Path()))
    if state.console.json:
        state.console.document(comparison.to_plain())
    else:
        state.console.show(comparison_table(comparison))
    return ExitCode.DONE


@click.command()
@RECIPE
@click.argument("package", shell_complete=complete_packages)
@json_option
@click.pass_obj
def explain(state: State, *, recipe: Path, package: str) -> int:
    """Show who wants a locked package, with which bounds, what overruled them, and where it comes from.

    A Debian package is asked for as deb:NAME.
    """
    from builder.explain.stage import explain_package
    from builder.explain.text import explanation_lines
    from builder.recipe.source import read_recipe

    source = read_recipe(recipe)
    explanation = explain_package(source, package, state.tools())
    if state.console.json:
        state.console.document(explanation.to_plain())
    else:
        state.console.output("\n".join(explanation_lines(explanation)))
    return ExitCode.DONE


@click.command()
@click.argument("recipe", required=False, type=RECIPE_PATH, shell_complete=complete_recipes)
@click.option("--host-script", is_flag=True, help="Print the commands that bring Ubuntu 24.04 to the recipe's driver.")
@json_option
@click.pass_obj
def doctor(state: State, *, recipe: Path | None, host_script: bool) -> int:
    """Say what is right and wrong with this machine, for a recipe if one is given, and how to fix it."""
    from builder.errors import EngineError
    from builder.machine import doctor_table, examine_machine, script_for
    from builder.recipe.source import read_recipe
    from builder.settings import settings_from

    source = read_recipe(recipe) if recipe else None
    if host_script:
        state.console.output(script_for(source))
        return ExitCode.DONE
    findings = examine_machine(source, settings_from(), lambda: connect_engine().facts())
    if state.console.json:
        state.console.document([finding.to_plain() for finding in findings])
    else:
        state.console.show(doctor_table(findings))
    return EngineError.exit_code if any(finding.refuses for finding in findings) else ExitCode.DONE
