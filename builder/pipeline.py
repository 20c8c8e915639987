"""The road: recipe -> findings -> lock -> Dockerfiles -> wheels -> image -> verdict."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from builder.build.environment import one_line
from builder.build.stage import build_recipe, render_recipe
from builder.diagnose.cures import note_verdict
from builder.diagnose.stage import brief_lines, explain_verdict
from builder.lock.examine import facts_of
from builder.lock.stage import lock_recipe, locked_recipe
from builder.preflight.stage import check_recipe
from builder.verify.stage import smoke_recipe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.build.assembly import BuiltImage
    from builder.lock.model import Lock
    from builder.preflight.findings import Finding
    from builder.recipe.source import RecipeFile
    from builder.tools import Tools
    from builder.verify.verdict import Verdict


def make(source: RecipeFile, tools: Tools, *, frozen: bool = False) -> Verdict:
    """Go the whole road and return the verdict. With `frozen` a stale lock is an error, not resolved again."""
    tools.console.heading(": ".join(filter(None, (source.recipe.name, one_line(source.recipe.description)))))
    wished = check_recipe(source, tools.console)
    lock = locked_recipe(source) if frozen else lock_recipe(source, tools)
    findings = check_recipe(source, tools.console, lock=facts_of(lock), known=wished)
    render_recipe(source, lock, tools.console)
    image = build_recipe(source, lock, tools)
    return prove(source, lock, image, tools, findings=findings)


def prove(
    source: RecipeFile,
    lock: Lock,
    image: BuiltImage,
    tools: Tools,
    *,
    findings: Iterable[Finding] = (),
    again: bool = False,
) -> Verdict:
    """Prove an image, say how it ended and, where that is bad, why."""
    explain = partial(explain_verdict, source=source, locked=lock, store=tools.store, warn=tools.console.warn)
    verdict = smoke_recipe(source, lock, image, tools, findings=findings, again=again, explain=explain)
    tools.console.verdict(verdict.result, verdict.cause)
    for line in brief_lines(verdict.diagnosis) if verdict.diagnosis else ():
        tools.console.say(f"  {line}")
    note_verdict(source, verdict, tools.store)
    return verdict
