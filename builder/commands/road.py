"""The stretches of the road: make, check, lock, render, build, smoke."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from builder.commands.complete import complete_packages
from builder.commands.state import RECIPE, RETRY, SAVE_FINDING, conclude, json_option
from builder.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from builder.commands.state import State
    from builder.recipe.source import RecipeFile
    from builder.tools import Tools


@click.command()
@RECIPE
@click.option("--locked", is_flag=True, help="Refuse a stale lock (exit 5) instead of resolving again.")
@RETRY
@click.option("--save-finding", is_flag=True, help=SAVE_FINDING)
@json_option
@click.pass_obj
def make(state: State, *, recipe: Path, locked: bool, retry: bool, save_finding: bool) -> int:
    """Go the whole road: lock, render, compile, assemble, prove.

    Exit 0: good, 8: bad, 12: a required check could not run.
    """
    from builder.pipeline import make as go
    from builder.recipe.source import read_recipe

    source, tools = read_recipe(recipe), state.tools(retry=retry)
    verdict = go(source, tools, frozen=locked)
    _offer(source, tools, save=save_finding)
    return conclude(state, verdict)


def _offer(source: RecipeFile, tools: Tools, *, save: bool) -> None:
    """Save the finding that a cured failure left, or say that there is one."""
    from builder.diagnose.cures import offer_of, save_offer

    if save and (path := save_offer(source, tools.store)) is not None:
        tools.console.say(f"  wrote {path}: `envbuild diagnose` knows this failure and its cure now")
    elif not save and offer_of(source, tools.store) is not None:
        tools.console.say(f"  what cured it is offered as a finding: envbuild make {source.path} --save-finding")


@click.command()
@RECIPE
@json_option
@click.pass_obj
def check(state: State, *, recipe: Path) -> int:
    """Apply the preflight rules to a recipe and, where there is one, its lock; exit 4 if one refuses."""
    from builder.lock.examine import examine_recipe
    from builder.recipe.source import read_recipe

    findings = examine_recipe(read_recipe(recipe), state.console)
    if state.console.json:
        state.console.document([finding.to_plain() for finding in findings])
    elif not findings:
        state.console.say("nothing to say against it")
    return ExitCode.DONE


@click.command()
@RECIPE
@click.option("--check", is_flag=True, help="Only say whether the lock answers the recipe (exit 5 if not).")
@click.option(
    "--update",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_packages,
    help="Let this package, and what it forces, move to a newer version; all others stay. `debian`: all of Debian's.",
)
@click.option("--update-all", is_flag=True, help="Resolve every package anew.")
@json_option
@click.pass_obj
def lock(state: State, *, recipe: Path, check: bool, names: tuple[str, ...], update_all: bool) -> int:
    """Resolve the recipe to exact versions and hashes, in lockfiles/NAME/, and show what changed.

    Locked versions stay where the recipe still allows them.
    """
    from builder.lock.changes import changes_between
    from builder.lock.stage import lock_recipe, locked_recipe, previous_lock
    from builder.lock.update import Update
    from builder.recipe.source import read_recipe

    if check + bool(names) + update_all > 1:
        raise UsageError("--check, --update and --update-all exclude each other")
    source = read_recipe(recipe)
    before = previous_lock(source)
    wish = Update(names=names, everything=update_all)
    found = locked_recipe(source) if check else lock_recipe(source, state.tools(), update=wish)
    if state.console.json:
        changes = [change.to_plain() for change in changes_between(before, found)]
        state.console.document(
            {"recipe": found.name, "digest": found.digest, "wheels": len(found.wheels), "changes": changes}
        )
    return ExitCode.DONE


@click.command()
@RECIPE
@click.option("--check", is_flag=True, help="Only say whether the committed files are current (exit 5 if not).")
@json_option
@click.pass_obj
def render(state: State, *, recipe: Path, check: bool) -> int:
    """Render the Dockerfiles of a locked recipe to dockerfiles/NAME/."""
    from builder.build.stage import check_rendered, render_recipe
    from builder.lock.stage import locked_recipe
    from builder.recipe.source import read_recipe

    source = read_recipe(recipe)
    found = locked_recipe(source)
    if check:
        check_rendered(source, found)
    changed = () if check else render_recipe(source, found, state.console)
    if state.console.json:
        state.console.document({"recipe": source.recipe.name, "changed": list(changed)})
    return ExitCode.DONE


@click.command()
@RECIPE
@click.option("--check-dockerfile", is_flag=True, help="Build the Dockerfile with the engine alone, and compare.")
@RETRY
@json_option
@click.pass_obj
def build(state: State, *, recipe: Path, check_dockerfile: bool, retry: bool) -> int:
    """Compile the wheels and assemble the image of a locked recipe."""
    from builder.build.stage import build_recipe
    from builder.lock.stage import locked_recipe
    from builder.recipe.source import read_recipe

    source = read_recipe(recipe)
    locked, tools = locked_recipe(source), state.tools(retry=retry)
    image = build_recipe(source, locked, tools)
    if check_dockerfile:
        from builder.export.stage import check_dockerfile as compare

        compare(source, locked, tools)
    if state.console.json:
        state.console.document(
            {
                "recipe": source.recipe.name,
                "reference": image.reference,
                "image_id": image.image_id,
                "manifest_digest": image.manifest_digest,
            }
        )
    else:
        state.console.output(f"{image.reference} {image.image_id}")
    return ExitCode.DONE
