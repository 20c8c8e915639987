"""What is kept, taken along and thrown away: export, shell, gc."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from builder.commands.state import RECIPE, json_option
from builder.commands.values import OUTPUT, OUTPUT_FILE, OUTPUT_FOLDER
from builder.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from builder.collect.garbage import Garbage
    from builder.commands.state import State


@click.command()
@RECIPE
@click.option(
    "--context", type=OUTPUT_FOLDER, help="Write the build context of the rendered Dockerfiles to a new folder."
)
@click.option(
    "--wheels", type=OUTPUT_FOLDER, help="Write pylock.toml and the wheels that it names: uv and pip read both."
)
@click.option("--kit", type=OUTPUT, help="Write a folder (or FILE.tar) that `make` needs no network with.")
@click.option("--oci", type=OUTPUT, help="Write an OCI layout: FILE.tar, or a new folder.")
@click.option("--apptainer", type=OUTPUT_FILE, help="Write an Apptainer definition file for the image.")
@json_option
@click.pass_obj
def export(
    state: State,
    *,
    recipe: Path,
    context: Path | None,
    wheels: Path | None,
    kit: Path | None,
    oci: Path | None,
    apptainer: Path | None,
) -> int:
    """Take a locked recipe along: for plain Docker, for uv and pip, for a machine without a network, for Apptainer.

    Nothing is written over: each place must be new, or an empty folder. With --oci FILE.tar the Apptainer definition
    takes the image from that file, else from the local engine.
    """
    from builder.export import stage
    from builder.lock.stage import locked_recipe
    from builder.places import refuse_taken
    from builder.recipe.source import read_recipe

    source = read_recipe(recipe)
    locked = locked_recipe(source)
    asked = {"context": context, "wheels": wheels, "kit": kit, "oci": oci, "apptainer": apptainer}
    written = {name: str(path) for name, path in asked.items() if path is not None}
    if not written:
        raise UsageError("nothing to export", remedy="give --context, --wheels, --kit, --oci or --apptainer")
    refuse_taken(path for path in asked.values() if path is not None)
    tools = state.tools()
    if context is not None:
        stage.export_context(source, locked, context, tools)
    if wheels is not None:
        stage.export_wheels(source, locked, wheels, tools)
    if kit is not None:
        stage.export_kit(source, locked, kit, tools)
    if oci is not None:
        stage.export_layout(source, locked, oci, tools)
    if apptainer is not None:
        stage.export_definition(source, locked, apptainer, tools, archive=oci if oci and oci.suffix == ".tar" else None)
    if state.console.json:
        state.console.document({"recipe": source.recipe.name, "written": written})
    return ExitCode.DONE


@click.command()
@RECIPE
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def shell(state: State, *, recipe: Path, command: tuple[str, ...]) -> int:
    """Open a shell in the image of a locked recipe, or run a COMMAND there (write `--` before it).

    Needs the `docker` program; all GPUs of this machine are there. The container is removed when the shell ends.
    """
    from builder.build.stage import build_recipe
    from builder.lock.stage import locked_recipe
    from builder.process import become
    from builder.recipe.source import read_recipe
    from builder.shell import GPU_DEVICE, shell_command

    source = read_recipe(recipe)
    image = build_recipe(source, locked_recipe(source), state.tools())
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    line = shell_command(image.reference, source.recipe, command, terminal=terminal, gpu=GPU_DEVICE.exists())
    become(line)


@click.command()
@click.option("--yes", is_flag=True, help="Remove without asking.")
@json_option
@click.pass_obj
def gc(state: State, *, yes: bool) -> int:
    """Remove what no lock needs any more from the store, and old images of this store from the engine.

    Says first what goes. Asks on a terminal; elsewhere nothing is removed without --yes.
    """
    from builder.collect.stage import collect, find_garbage
    from builder.collect.table import garbage_table

    tools = state.tools()
    garbage = find_garbage(tools)
    if not state.console.json:
        state.console.show(garbage_table(garbage))
    freed = bool(garbage.count) and _may_remove(state, garbage, yes=yes)
    if freed:
        garbage = collect(garbage, tools)
    if state.console.json:
        state.console.document({"removed": freed, **garbage.to_plain()})
    return ExitCode.DONE


def _may_remove(state: State, garbage: Garbage, *, yes: bool) -> bool:
    if yes:
        return True
    if sys.stdin.isatty() and state.console.is_terminal:
        return click.confirm(f"remove {garbage.size >> 20} MiB?", err=True)
    state.console.say("nothing is removed: say --yes")
    return False
