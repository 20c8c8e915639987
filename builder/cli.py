"""Arguments in, exit code out; decides nothing else."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from builder.commands import diagnosis, grid, insight, keep, matrix, project, proof, publish, road, wheels
from builder.commands.state import State
from builder.errors import BuildFailedError, EnvbuildError, ExitCode, InterruptionError, UsageError, unwritten

if TYPE_CHECKING:
    from types import FrameType

    from builder.verify.reported import Reported

COMMANDS = (
    road.make,
    road.check,
    road.lock,
    road.render,
    wheels.wheels,
    road.build,
    proof.smoke,
    publish.publish,
    publish.verify,
    publish.promote,
    keep.export,
    keep.shell,
    keep.gc,
    insight.status,
    insight.diff,
    insight.explain,
    insight.doctor,
    diagnosis.diagnose,
    matrix.search,
    matrix.bisect,
    grid.matrix,
    grid.report,
    project.schema,
    project.completion,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="envbuild", prog_name=project.PROGRAM)
@click.option("-v", "--verbose", is_flag=True, help="Show the output of compilers and checks as it comes.")
@click.pass_context
def cli(context: click.Context, *, verbose: bool) -> None:
    """Build and prove complete inference stacks for new NVIDIA GPUs from one recipe.

    A recipe pins a whole stack. `envbuild make RECIPE` locks it, compiles what must be compiled, assembles the image,
    runs it against a tiny GLM-5-NVFP4, and says good or bad, and why.
    """
    context.ensure_object(State).console.verbose = verbose


for command in COMMANDS:
    cli.add_command(command)


def main() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    gc.set_threshold(100_000)  # imports make many objects and hardly any garbage: a tenth of a short command's time
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
        signal.signal(signal.SIGHUP, _hang_up)
    _prepare_streams()
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:  # nobody reads on: `envbuild status | head -1`
        os._exit(ExitCode.UNHEARD)
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _complain_and_end()
    if code == ExitCode.INTERRUPTED:  # a thread may still wait for the network: nobody waits for it
        os._exit(code)
    sys.exit(code)


def _complain_and_end() -> NoReturn:
    """End a process whose output goes to a full disk: what it still holds can be written nowhere."""
    with contextlib.suppress(OSError):
        os.write(2, b"error: the output cannot be written: no space is left on the disk\n")
    os._exit(BuildFailedError.exit_code)


def _prepare_streams() -> None:
    """Let what is written never fail for its characters, and give a process with closed streams empty ones."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # as a service manager may start us
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open to the end
        elif mode == "w":
            stream.reconfigure(errors="replace")


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
        return _misused(state, error, arguments)
    except EnvbuildError as error:
        return _fail(state, error, arguments)
    except UnicodeEncodeError as error:
        return _fail(state, _unwritable_name(error), arguments)
    except OSError as error:
        if (error.filename is None and error.errno != errno.ENOSPC) or state.console.verbose:
            raise
        return _fail(state, _unusable_file(error), arguments)
    except SystemExit:  # click itself ends a process that completes a line, and one that nobody reads
        if os.environ.get(project.COMPLETION_VARIABLE):
            raise
        raise BrokenPipeError from None
    except (KeyboardInterrupt, click.Abort):
        return _stopped(state)
    return code if isinstance(code, int) else ExitCode.DONE


def _misused(state: State, error: click.ClickException, arguments: list[str]) -> int:
    """Say what is wrong with a line; one that asks for nothing gets the help."""
    state.console.json = "--json" in arguments
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        state.console.say(error.format_message())
        return error.exit_code
    return _fail(state, UsageError(error.format_message()), arguments)


def _fail(state: State, error: EnvbuildError, arguments: list[str]) -> int:
    if isinstance(error, UsageError) and not error.remedy:
        error.remedy = f"see `{command_path(arguments)} --help`"
    state.console.error(error)
    report = _reported(error, state)
    if state.console.json:
        diagnosis = {"diagnosis": report.to_plain()} if report else {}
        state.console.document({"error": {**_error_document(error), **diagnosis}})
    return error.exit_code


def command_path(arguments: list[str]) -> str:
    """Return the command that a line means, as far as it names one: `envbuild matrix run`."""
    command: click.Command = cli
    path = [project.PROGRAM]
    for word in arguments:
        if isinstance(command, click.Group) and not word.startswith("-"):
            found = command.commands.get(word)
            if found is None:
                break
            command = found
            path.append(word)
    return " ".join(path)


def _stopped(state: State) -> int:
    error = InterruptionError("interrupted")
    state.console.say(f"{error.message}: {error.remedy}")
    if state.console.json:
        state.console.document({"error": _error_document(error)})
    return error.exit_code


def _reported(error: EnvbuildError, state: State) -> Reported | None:
    """Diagnose what a failed stage left, show the likeliest cause, and return it all."""
    if not error.tells:
        return None
    from builder.diagnose.stage import brief_lines, diagnose_error, recipe_at  # noqa: PLC0415 - only a failure needs it

    diagnosis = diagnose_error(error, recipe_at(state.recipe), warn=state.console.warn)
    for line in brief_lines(diagnosis.reported) if diagnosis else ():
        state.console.say(f"  {line}")
    return diagnosis.reported if diagnosis else None


def _unusable_file(error: OSError) -> EnvbuildError:
    """Return the sentence for a file or folder that the machine does not let us use."""
    return unwritten(
        error,
        f"{error.filename or 'the output'} cannot be used: {error.strerror}",
        remedy="check that the place exists, is what it is named for, and may be written; --verbose shows where",
    )


def _unwritable_name(error: UnicodeEncodeError) -> EnvbuildError:
    """Return the sentence for a path that is no text: it has bytes that nothing can write into a document."""
    name = error.object.strip('"')
    return UsageError(
        f"{name!a} has bytes that are not UTF-8, so it cannot be written into a document",
        remedy="rename the file or folder; what envbuild writes down must be text",
    )


def _error_document(error: EnvbuildError) -> dict[str, Any]:
    return {
        "exit_code": error.exit_code,
        "message": error.message,
        "remedy": error.remedy,
        "evidence": list(error.evidence),
    }


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _no_more(_signal: int, _frame: FrameType | None) -> None:
    """Let the clean-up go on; what is started meanwhile does not inherit this, as it would SIG_IGN."""


def _hang_up(_signal: int, _frame: FrameType | None) -> NoReturn:
    """End as after Ctrl-C, and say the rest to nobody where the terminal is gone: it takes no more words."""
    signal.signal(signal.SIGHUP, _no_more)  # a shell says it, and the kernel again when the shell ends
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # it may be closed
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                os.dup2(nowhere, descriptor)
    raise KeyboardInterrupt
