"""Arguments in, exit code out; decides nothing else."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from builder.commands import diagnosis, insight, keep, project, road
from builder.commands.state import State
from builder.errors import EnvbuildError, ExitCode, UsageError

if TYPE_CHECKING:
    from types import FrameType

COMMANDS = (
    road.make,
    road.check,
    road.lock,
    road.render,
    road.build,
    road.smoke,
    keep.export,
    keep.shell,
    keep.gc,
    insight.status,
    insight.diff,
    insight.explain,
    insight.doctor,
    diagnosis.diagnose,
    project.schema,
    project.completion,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="envbuild", prog_name=project.PROGRAM)
@click.option("-v", "--verbose", is_flag=True, help="Show the output of compilers and checks as it comes.")
@click.pass_context
def cli(context: click.Context, *, verbose: bool) -> None:
    """Build, prove and publish complete inference stacks for new NVIDIA GPUs from one recipe.

    A recipe pins a whole stack. `envbuild make RECIPE` locks it, compiles what must be compiled, assembles the image,
    runs it against a tiny GLM-5-NVFP4, and says good or bad, and why.
    """
    context.ensure_object(State).console.verbose = verbose


for command in COMMANDS:
    cli.add_command(command)


def main() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; every way to end badly is caught here and nowhere else."""
    state = State()
    try:
        code = cli.main(
            arguments,
            prog_name=project.PROGRAM,
            complete_var=project.COMPLETION_VARIABLE,
            standalone_mode=False,
            obj=state,
        )
    except click.ClickException as error:
        error.show()
        return UsageError.exit_code
    except EnvbuildError as error:
        state.console.error(error)
        if state.console.json:
            state.console.document({"error": _error_document(error)})
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        state.console.say("interrupted: what was finished is kept, the same command goes on from here")
        return ExitCode.INTERRUPTED
    return code if isinstance(code, int) else ExitCode.DONE


def _error_document(error: EnvbuildError) -> dict[str, Any]:
    return {
        "exit_code": error.exit_code,
        "message": error.message,
        "remedy": error.remedy,
        "evidence": list(error.evidence),
    }


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
