"""A stack without a recipe, an image or the interpreter at hand: the levels that decode, and a verdict of its own."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.process import run
from builder.tools import show_lines
from builder.verify.grounds import suite_digest
from builder.verify.levels import Decoding
from builder.verify.place import Here, InImage
from builder.verify.smoke import run_levels
from builder.verify.verdict import Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.recipe.model import Serve
    from builder.tools import Tools
    from builder.verify.place import Place
    from builder.verify.verdict import Level

NONE = "none"
MEMORY = 16 << 30
LOOKED_FOR = ("python3", "python")
HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Alone:
    """A stack that no lock describes: its name, its server's settings, if any, and its time in seconds."""

    name: str
    image_id: str
    facts: dict[str, str]
    serve: Serve | None = None
    timeout: float


def smoke_here(
    python: Path | None,
    levels: tuple[Level, ...],
    tools: Tools,
    *,
    timeout: float,
    serve: Serve | None = None,
) -> Verdict:
    """Prove the stack of an interpreter of this machine; with `serve` also its server, at gpu-decode.

    Raises UsageError if no interpreter is given and none on the PATH has torch.
    """
    here = Here(store=tools.store, python=python or interpreter_with_torch())
    facts = {"place": "this machine, without a container"}
    stack = Alone(name="here", image_id=NONE, facts=facts, serve=serve, timeout=timeout)
    return _prove(stack, lambda _gpus: here, levels, tools)


def smoke_reference(reference: str, levels: tuple[Level, ...], tools: Tools, *, timeout: float) -> Verdict:
    """Prove the stack in any image that the engine has, by its reference; raises UsageError if it has it not."""
    image_id = tools.engine.image_id(reference)
    if image_id is None:
        raise UsageError(
            f"the engine has no image {reference}",
            remedy=f"pull it first: `docker pull {reference}`; a recipe is a file",
        )
    seen = tools.engine.facts()
    facts = {"version": seen.version, "operating_system": seen.operating_system}
    stack = Alone(name=reference, image_id=image_id, facts=facts, timeout=timeout)

    def place(gpus: int) -> Place:
        return InImage(engine=tools.engine, store=tools.store, image=image_id, memory=MEMORY, gpus=gpus)

    return _prove(stack, place, levels, tools)


def interpreter_with_torch() -> Path:
    """Return the first Python of the PATH that has torch; raise UsageError if none has."""
    found = [Path(path) for name in LOOKED_FOR if (path := shutil.which(name))]
    for python in found:
        if run([str(python), "-c", HAS_TORCH], without=("PYTHONHOME",)).code == 0:
            return python
    names = ", ".join(map(str, found)) or "there is none"
    raise UsageError(
        f"no Python on the PATH has torch: {names}", remedy="name the stack's interpreter with --python PATH"
    )


def _prove(stack: Alone, place: Callable[[int], Place], levels: tuple[Level, ...], tools: Tools) -> Verdict:
    with tools.console.step(f"prove {stack.name}: {', '.join(levels)}") as step:
        decoding = Decoding(
            place=place,
            serve=stack.serve,
            store=tools.store,
            timeout=stack.timeout,
            on_line=show_lines(step, tools.console),
        )
        checks = run_levels(levels, decoding.run)
    result, cause = judge(checks, levels)
    return Verdict(
        recipe=stack.name,
        result=result,
        cause=cause,
        lock_digest=NONE,
        image_id=stack.image_id,
        suite_digest=suite_digest(),
        engine=stack.facts,
        required=levels,
        checks=checks,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    )
