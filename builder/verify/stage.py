"""Image -> verdict, as one stretch of the road."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.lock.requirements import built_packages, stack_packages
from builder.preflight.toolchain import native_cuda
from builder.recipe.targets import find_target
from builder.recipe.workspace import workspace_of
from builder.store import mended
from builder.tools import show_lines
from builder.verify.grounds import grounds_of
from builder.verify.record import find_proof, keep_proof
from builder.verify.smoke import Subject, smoke_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from builder.build.assembly import BuiltImage
    from builder.console import Console
    from builder.lock.model import Lock
    from builder.preflight.findings import Finding
    from builder.recipe.model import Smoke
    from builder.recipe.source import RecipeFile
    from builder.tools import Tools
    from builder.verify.grounds import Grounds
    from builder.verify.reported import Reported
    from builder.verify.verdict import Level, Verdict

    Explain = Callable[[Verdict], Reported | None]


def smoke_recipe(
    source: RecipeFile,
    locked: Lock,
    image: BuiltImage,
    tools: Tools,
    *,
    findings: Iterable[Finding] = (),
    again: bool = False,
    explain: Explain | None = None,
) -> Verdict:
    """Prove an image, unless this machine has proven the same image by the same checks before (and not `again`).

    Layers whose files were read before are not read anew, but for `again`.
    Rules of preflight that the recipe waives are written into the verdict, and what `explain` makes of a bad one.
    """
    waived = {finding.rule: finding.waived for finding in findings if finding.waived is not None}
    grounds = grounds_of(source, locked, image.image_id)
    key = grounds.proof_key(waived)
    with tools.store.exclusive(f"verdict-{key}"):
        proof = None if again else find_proof(key, tools.store)
        if proof is None:
            subject = replace(_subject(source, locked, image, grounds, waived), again=again)
            smoke = source.recipe.smoke
            verdict = mended(tools.store, lambda: _prove(subject, smoke, image, tools), tools.console.warn)
            if explain is not None and verdict.result == "bad":
                verdict = verdict.model_copy(update={"diagnosis": explain(verdict)})
        else:
            verdict = proof.verdict
            tools.console.current("verdict")
        keep_proof(verdict, workspace_of(source).verdict, tools.store)
    return verdict


def try_recipe(
    source: RecipeFile,
    locked: Lock,
    image: BuiltImage,
    tools: Tools,
    *,
    levels: tuple[Level, ...],
    gpu: str | None = None,
) -> Verdict:
    """Run some levels only, for the recipe's GPU or another one (`gpu`, by its id); the recipe's verdict stays."""
    smoke = source.recipe.smoke.model_copy(update={"require": levels})
    target = source.recipe.target.model_copy(update={"gpu": gpu} if gpu is not None else {})
    asked = replace(source, recipe=source.recipe.model_copy(update={"smoke": smoke, "target": target}))
    subject = replace(_subject(asked, locked, image, grounds_of(asked, locked, image.image_id), {}), again=True)
    return mended(tools.store, lambda: _prove(subject, smoke, image, tools), tools.console.warn)


def show_checks(verdict: Verdict, console: Console) -> None:
    """Show each check with its lines, for a person who asked for these checks."""
    marks = {"passed": "✓", "failed": "✗", "skipped": "-"}
    for check in verdict.checks:
        console.say(f"  {marks[check.outcome]} {check.name}: {check.summary}")
        for line in check.evidence:
            console.say(f"      {line}")


def _prove(subject: Subject, smoke: Smoke, image: BuiltImage, tools: Tools) -> Verdict:
    with tools.console.step(f"prove {image.reference}: {', '.join(smoke.require)}") as step:
        on_line = show_lines(step, tools.console)
        return smoke_image(subject, smoke, engine=tools.engine, store=tools.store, on_line=on_line)


def _subject(source: RecipeFile, locked: Lock, image: BuiltImage, grounds: Grounds, waived: dict[str, str]) -> Subject:
    recipe = source.recipe
    return Subject(
        recipe=recipe.name,
        image_id=image.image_id,
        lock_digest=locked.digest,
        waived=waived,
        serve=recipe.serve,
        question=dict(grounds.question),
        sources=dict(grounds.sources),
        target=find_target(recipe.target.gpu),
        installed=image.installed,
        places=image.places,
        built=built_packages(recipe),
        stack=tuple(sorted(recipe.stack)),
        asked=stack_packages(recipe),
        overrides=tuple(sorted(recipe.overrides)),
        driver_cuda=native_cuda(recipe.host.driver) if recipe.host else None,
    )
