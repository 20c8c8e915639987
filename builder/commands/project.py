"""The project's own tools: files made from code and data, and completion for shells."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.errors import ExitCode, StaleLockError, UsageError

if TYPE_CHECKING:
    from builder.commands.state import State

CHECKOUT = "builder/commands/project.py"
PROGRAM = "envbuild"
COMPLETION_VARIABLE = "_ENVBUILD_COMPLETE"


@click.command()
@click.option(
    "--write", is_flag=True, help="Write the schema and the reference pages that are made from code and data."
)
@click.option("--check", is_flag=True, help="Say which of them are not current (exit 5).")
@click.pass_context
def schema(context: click.Context, *, write: bool, check: bool) -> int:
    """Print the JSON schema of recipes, for editors."""
    from builder.commands.reference import command_files
    from builder.diagnose.reference import diagnosis_files
    from builder.matrix.schema import matrix_files
    from builder.preflight.reference import preflight_files
    from builder.recipe.generated import stale_generated, write_generated
    from builder.recipe.schema import recipe_files, schema_text

    if write and check:
        raise UsageError("--write and --check exclude each other")
    if (write or check) and not Path(CHECKOUT).is_file():
        raise UsageError(
            f"--write and --check are for a checkout of envbuild, and {Path.cwd()} is none",
            remedy="go to the folder that has builder/ and docs/; for an editor: envbuild schema >recipe.schema.json",
        )
    state: State = context.obj
    commands = command_files(context.find_root().command)
    files = (*recipe_files(), *preflight_files(), *diagnosis_files(), *matrix_files(), *commands)
    if write:
        for path in write_generated(files, Path()):
            state.console.say(f"  wrote {path}")
    elif check:
        stale = stale_generated(files, Path())
        if stale:
            raise StaleLockError(f"not current: {', '.join(stale)}", remedy="run `envbuild schema --write`")
    else:
        state.console.output(schema_text())
    return ExitCode.DONE


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, *, shell: str) -> int:
    """Print the script that makes a shell complete commands, options and what they take.

    Example, for bash: eval "$(envbuild completion bash)"
    """
    from click.shell_completion import get_completion_class

    state: State = context.obj
    kind = get_completion_class(shell)
    if kind is None:
        raise LookupError(shell)
    state.console.output(kind(context.find_root().command, {}, PROGRAM, COMPLETION_VARIABLE).source())
    return ExitCode.DONE
