"""The check `static.serve`: the server's own parser takes every option that the recipe gives."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from builder.recipe.options import server_options
from builder.verify.static_report import first_of, shortened
from builder.verify.verdict import Check, Outcome

if TYPE_CHECKING:
    from builder.recipe.model import Serve
    from builder.verify.static_report import SeenOptions

MODEL_OPTION = {"sglang": "--model-path"}


def command_line(serve: Serve) -> tuple[str, ...]:
    """Return the server's options as it gets them: `true` is an option alone, `false` none."""
    model = (MODEL_OPTION[serve.engine], serve.model) if serve.model and serve.engine in MODEL_OPTION else ()
    return (*model, *server_options(serve.args))


def serve_check(seen: SeenOptions) -> Check:
    """Say which options the installed server does not know or refuses, and which it may have meant."""
    unknown = [option.partition("=")[0] for option in seen.unknown if option.startswith("--")]
    problems = [f"this {seen.engine} does not know {name}{_nearest(name, seen.known)}" for name in unknown]
    problems += [f"this {seen.engine} refuses: {sentence}" for sentence in seen.refused]
    if seen.unknown and not unknown:
        problems.append(f"this {seen.engine} has no use for {' '.join(seen.unknown)}")
    outcome: Outcome = "failed" if problems else "passed" if seen.error is None else "skipped"
    asked = f"{seen.engine} could not be asked for its options: {seen.error}" if seen.error else ""
    return Check(
        name="static.serve",
        level="static",
        outcome=outcome,
        summary=first_of(problems) or asked or f"{seen.engine} knows all options of `serve`",
        figures={"options": len(seen.known), "problems": len(problems)},
        evidence=shortened([*problems, *seen.tail]),
    )


def _nearest(name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""
