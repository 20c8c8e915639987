"""Proving a stack: the image of a recipe, any image, or the interpreter at hand."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.commands.complete import complete_recipes, complete_targets
from builder.commands.state import conclude, json_option
from builder.commands.values import DAY, OUTPUT_FILE, Limit
from builder.errors import InvalidDocumentError, UsageError

if TYPE_CHECKING:
    from builder.commands.state import State
    from builder.recipe.model import Serve
    from builder.verify.verdict import Level, Verdict

DECODING = ("cpu-decode", "gpu-decode")
LEVELS = ("static", "dry-run", *DECODING, "program")
RECIPE_ENDINGS = (".yaml", ".yml")


@click.command()
@click.argument("subject", metavar="[RECIPE|IMAGE]", required=False, shell_complete=complete_recipes)
@click.option("--here", is_flag=True, help="Prove the interpreter at hand, without a container.")
@click.option(
    "--python",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="With --here: the stack's interpreter (default: the first one on the PATH that has torch).",
)
@click.option(
    "--level",
    "levels",
    multiple=True,
    type=click.Choice(LEVELS),
    help="Run only this level, and leave the recipe's verdict alone; can be given again. Of an image without a recipe "
    "and of the interpreter at hand: cpu-decode (the default) or gpu-decode.",
)
@click.option(
    "--target",
    "gpu",
    metavar="GPU",
    shell_complete=complete_targets,
    help="Judge a recipe's image for this GPU instead of the recipe's, such as rtx-5090.",
)
@click.option(
    "--timeout",
    type=Limit(min=1, max=7 * DAY),
    default=1200.0,
    show_default=True,
    help="Seconds for each check of an image or of the interpreter at hand; what a server compiles comes on top.",
)
@click.option("--out", type=OUTPUT_FILE, help="Write the verdict to this file too.")
@json_option
@click.pass_obj
def smoke(
    state: State,
    *,
    subject: str | None,
    here: bool,
    python: Path | None,
    levels: tuple[Level, ...],
    gpu: str | None,
    timeout: float,
    out: Path | None,
) -> int:
    """Prove a stack again, whatever was seen before: a recipe's image, any image, or the interpreter at hand.

    \b
    envbuild smoke recipes/quickstart.yaml                  the checks that the recipe requires, in its image
    envbuild smoke recipes/quickstart.yaml --level dry-run --target rtx-5090
                                                            one level only, for another GPU
    envbuild smoke registry/stack@sha256:...                any image that the engine has; no recipe is needed
    envbuild smoke --here --level gpu-decode                the stack of this machine, without a container
    envbuild smoke --here recipes/x.yaml --level gpu-decode the same, through the server that the recipe starts

    Only the verdict on a recipe's own image is kept in lockfiles/. Exit 0: good, 8: bad, 12: a check could not run.
    """  # noqa: D301 - a backspace: click keeps the lines after it as they are
    if subject is not None and not here and _is_recipe(subject):
        _must_be_absent(python)
        verdict = _recipe(state, Path(subject), levels=levels, gpu=gpu)
    else:
        if gpu is not None:
            raise UsageError("--target is for a recipe's image", remedy="name the recipe")
        verdict = _alone(state, subject, here=here, python=python, levels=levels or ("cpu-decode",), timeout=timeout)
        _explain(state, verdict)
    if out is not None:
        from builder.document import pretty_json, write_atomic

        write_atomic(out, pretty_json(verdict.to_plain()))
    return conclude(state, verdict)


def _recipe(state: State, recipe: Path, *, levels: tuple[Level, ...], gpu: str | None) -> Verdict:
    from builder.build.stage import build_recipe
    from builder.lock.examine import examine_recipe
    from builder.lock.stage import locked_recipe
    from builder.pipeline import prove
    from builder.recipe.source import read_recipe
    from builder.recipe.targets import find_nearest_target, targets
    from builder.verify.stage import show_checks, try_recipe

    source, tools = read_recipe(recipe), state.tools()
    if gpu is not None and gpu not in targets():
        raise UsageError(f"--target: no GPU {gpu!r} is known", remedy=find_nearest_target(gpu))
    found = locked_recipe(source)
    findings = examine_recipe(source, state.console)
    image = build_recipe(source, found, tools)
    if not levels and gpu is None:
        return prove(source, found, image, tools, findings=findings, again=True)
    verdict = try_recipe(source, found, image, tools, levels=levels or source.recipe.smoke.require, gpu=gpu)
    show_checks(verdict, state.console)
    state.console.say("only what --level and --target asked for was run; the recipe's verdict is as it was")
    state.console.verdict(verdict.result, verdict.cause)
    return verdict


def _alone(
    state: State, subject: str | None, *, here: bool, python: Path | None, levels: tuple[Level, ...], timeout: float
) -> Verdict:
    from builder.verify.alone import smoke_here, smoke_reference

    if other := [level for level in levels if level not in DECODING]:
        raise UsageError(f"--level {other[0]} needs a recipe", remedy=f"without one: {', '.join(DECODING)}")
    if here:
        return smoke_here(python, levels, state.tools(), timeout=timeout, serve=_serve_of(subject))
    _must_be_absent(python)
    if subject is None:
        raise UsageError("what is to be proven?", remedy="name a recipe or an image, or give --here")
    return smoke_reference(subject, levels, state.tools(), timeout=timeout)


def _must_be_absent(python: Path | None) -> None:
    if python is not None:
        raise UsageError("--python belongs to --here", remedy="an image is proven with the interpreter inside it")


def _serve_of(subject: str | None) -> Serve | None:
    """Return how the server of a recipe is started; only a recipe says it."""
    from builder.recipe.source import read_recipe

    if subject is None:
        return None
    if not _is_recipe(subject):
        raise UsageError(f"--here proves no image: {subject}", remedy="leave one of both out")
    return read_recipe(Path(subject)).recipe.serve


def _is_recipe(subject: str) -> bool:
    return subject.endswith(RECIPE_ENDINGS) or Path(subject).is_file()


def _explain(state: State, verdict: Verdict) -> None:
    """Say how it ended, where the logs of what failed are, and what the diagnosis makes of them."""
    from builder.diagnose import diagnose_files, render

    store = state.tools().store
    logs = [store.sound(check.log) for check in verdict.checks if check.log is not None]
    state.console.verdict(verdict.result, verdict.cause)
    for path in logs:
        state.console.say(f"  log: {path}")
    with contextlib.suppress(InvalidDocumentError):  # a log that is empty or no text tells nothing
        if logs and (diagnosis := diagnose_files(logs)).causes:
            state.console.say(render(diagnosis))
