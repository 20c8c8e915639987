"""Arguments in, exit code out; decides nothing else."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from builder import pipeline
from builder.build.stage import build_recipe, check_rendered, render_recipe
from builder.console import Console
from builder.dockerd.client import connect
from builder.errors import EngineError, EnvbuildError, ExitCode, StaleLockError, UsageError
from builder.lock.stage import lock_recipe, locked_recipe
from builder.machine import doctor_table, examine_machine, script_for
from builder.preflight.reference import preflight_files
from builder.recipe.generated import stale_generated, write_generated
from builder.recipe.schema import recipe_files, schema_text
from builder.recipe.source import read_recipe
from builder.settings import settings_from
from builder.status import status_of, status_table
from builder.store import Store
from builder.tools import Tools
from builder.verify.stage import smoke_recipe

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from builder.verify.verdict import Verdict

RECIPE = click.argument("recipe", type=click.Path(path_type=Path, dir_okay=False))
_EXIT = {"good": ExitCode.DONE, "bad": ExitCode.BAD, "unverified": ExitCode.UNVERIFIED}


class State:
    """What every command of one call shares: the console, and the tools made when they are first needed."""

    def __init__(self) -> None:
        self.console = Console()

    def tools(self) -> Tools:
        """Return the tools of the road; opens the store, not yet the engine."""
        settings = settings_from()
        return Tools(
            settings=settings,
            store=Store(settings.store),
            console=self.console,
            connect=lambda: connect(settings),
        )


def _json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    def switch(context: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001
        if value:
            context.ensure_object(State).console.json = True

    return click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        callback=switch,
        help="Write one JSON document to standard output; text for people goes to standard error.",
    )(function)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="envbuild", prog_name="envbuild")
@click.option("-v", "--verbose", is_flag=True, help="Show the output of compilers and checks as it comes.")
@click.pass_context
def cli(context: click.Context, *, verbose: bool) -> None:
    """Build, prove and publish complete inference stacks for new NVIDIA GPUs from one recipe.

    A recipe pins a whole stack. `envbuild make RECIPE` locks it, compiles what must be compiled, assembles the image,
    runs it against a tiny GLM-5-NVFP4, and says good or bad, and why.
    """
    context.ensure_object(State).console.verbose = verbose


@cli.command()
@RECIPE
@click.option("--locked", is_flag=True, help="Refuse a stale lock (exit 5) instead of resolving again.")
@_json_option
@click.pass_obj
def make(state: State, *, recipe: Path, locked: bool) -> int:
    """Go the whole road: lock, render, compile, assemble, prove.

    Exit 0: good, 8: bad, 12: a required check could not run.
    """
    return _conclude(state, pipeline.make(read_recipe(recipe), state.tools(), frozen=locked))


@cli.command()
@RECIPE
@_json_option
@click.pass_obj
def check(state: State, *, recipe: Path) -> int:
    """Apply the preflight rules to a recipe and, where there is one, its lock; exit 4 if one refuses."""
    source = read_recipe(recipe)
    findings = pipeline.check(source, state.console)
    if state.console.json:
        state.console.document([finding.to_plain() for finding in findings])
    elif not findings:
        state.console.say("nothing to say against it")
    return ExitCode.DONE


@cli.command()
@RECIPE
@click.option("--check", is_flag=True, help="Only say whether the lock answers the recipe (exit 5 if not).")
@_json_option
@click.pass_obj
def lock(state: State, *, recipe: Path, check: bool) -> int:
    """Resolve the recipe to exact versions and hashes, in lockfiles/NAME/."""
    source = read_recipe(recipe)
    found = locked_recipe(source) if check else lock_recipe(source, state.tools())
    if state.console.json:
        state.console.document({"recipe": found.name, "digest": found.digest, "wheels": len(found.wheels)})
    return ExitCode.DONE


@cli.command()
@RECIPE
@click.option("--check", is_flag=True, help="Only say whether the committed files are current (exit 5 if not).")
@_json_option
@click.pass_obj
def render(state: State, *, recipe: Path, check: bool) -> int:
    """Render the Dockerfiles of a locked recipe to dockerfiles/NAME/."""
    source = read_recipe(recipe)
    found = locked_recipe(source)
    if check:
        check_rendered(source, found)
    changed = () if check else render_recipe(source, found, state.console)
    if state.console.json:
        state.console.document({"recipe": source.recipe.name, "changed": list(changed)})
    return ExitCode.DONE


@cli.command()
@RECIPE
@_json_option
@click.pass_obj
def build(state: State, *, recipe: Path) -> int:
    """Compile the wheels and assemble the image of a locked recipe."""
    source = read_recipe(recipe)
    image = build_recipe(source, locked_recipe(source), state.tools())
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


@cli.command()
@RECIPE
@_json_option
@click.pass_obj
def smoke(state: State, *, recipe: Path) -> int:
    """Prove the image of a locked recipe again, whatever was seen before."""
    source, tools = read_recipe(recipe), state.tools()
    found = locked_recipe(source)
    findings = pipeline.check(source, state.console)
    image = build_recipe(source, found, tools)
    verdict = smoke_recipe(source, found, image, tools, findings=findings, again=True)
    state.console.verdict(verdict.result, verdict.cause)
    return _conclude(state, verdict)


@cli.command()
@click.argument("recipes", nargs=-1, type=click.Path(path_type=Path, dir_okay=False))
@_json_option
@click.pass_obj
def status(state: State, *, recipes: tuple[Path, ...]) -> int:
    """Show the verdict of recipes, and what each check saw (without a name: one line for each in recipes/)."""
    paths = recipes or tuple(sorted(Path("recipes").rglob("*.yaml")))
    if not paths:
        raise UsageError("there are no recipes here", remedy="give the path of a recipe, or go to the project's folder")
    rows = [status_of(read_recipe(path)) for path in paths]
    if state.console.json:
        state.console.document([row.to_plain() for row in rows])
    else:
        state.console.show(status_table(rows, details=bool(recipes)))
    return ExitCode.DONE


@cli.command()
@click.argument("recipe", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--host-script", is_flag=True, help="Print the commands that bring Ubuntu 24.04 to the recipe's driver.")
@_json_option
@click.pass_obj
def doctor(state: State, *, recipe: Path | None, host_script: bool) -> int:
    """Say what is right and wrong with this machine, for a recipe if one is given, and how to fix it."""
    source = read_recipe(recipe) if recipe else None
    if host_script:
        state.console.output(script_for(source))
        return ExitCode.DONE
    findings = examine_machine(source, settings_from(), lambda: connect(settings_from()).facts())
    if state.console.json:
        state.console.document([finding.to_plain() for finding in findings])
    else:
        state.console.show(doctor_table(findings))
    return EngineError.exit_code if any(finding.refuses for finding in findings) else ExitCode.DONE


@cli.command()
@click.option(
    "--write", is_flag=True, help="Write the schema and the reference pages that are made from code and data."
)
@click.option("--check", is_flag=True, help="Say which of them are not current (exit 5).")
@click.pass_obj
def schema(state: State, *, write: bool, check: bool) -> int:
    """Print the JSON schema of recipes, for editors."""
    files = (*recipe_files(), *preflight_files())
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


def _conclude(state: State, verdict: Verdict) -> int:
    if state.console.json:
        state.console.document(verdict.to_plain())
    return _EXIT[verdict.result]


def main() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; every way to end badly is caught here and nowhere else."""
    state = State()
    try:
        code = cli.main(arguments, prog_name="envbuild", standalone_mode=False, obj=state)
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
