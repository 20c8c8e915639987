"""Image -> verdict, as one stretch of the road."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.document import canonical_json, key_of
from builder.errors import InvalidDocumentError
from builder.lock.requirements import built_packages
from builder.preflight.toolchain import native_cuda
from builder.recipe.targets import find_target
from builder.recipe.workspace import workspace_of
from builder.store import mended
from builder.tools import show_lines
from builder.verify.record import write_verdict
from builder.verify.smoke import Subject, served_digest, smoke_image, suite_digest
from builder.verify.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from builder.build.assembly import BuiltImage
    from builder.console import Console
    from builder.lock.model import Lock
    from builder.preflight.findings import Finding
    from builder.recipe.model import Smoke
    from builder.recipe.source import RecipeFile
    from builder.store import Store
    from builder.tools import Tools
    from builder.verify.reported import Reported
    from builder.verify.verdict import Level

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

    Rules of preflight that the recipe waives are written into the verdict, and what `explain` makes of a bad one.
    """
    recipe, path = source.recipe, workspace_of(source).verdict
    waived = {finding.rule: finding.waived for finding in findings if finding.waived is not None}
    served = served_digest(recipe)
    engine = recipe.serve.engine if recipe.serve else None  # decides what a deviation of Transformers' code means
    asked = [recipe.smoke.to_plain(), recipe.target.to_plain(), waived, served, engine]
    key = key_of([image.image_id, suite_digest(), *asked])
    with tools.store.exclusive(f"verdict-{key}"):
        verdict = None if again else _kept_verdict(key, tools.store)
        if verdict is None:
            subject = _subject(source, locked, image, waived)
            verdict = mended(tools.store, lambda: _prove(subject, recipe.smoke, image, tools), tools.console.warn)
            if explain is not None and verdict.result == "bad":
                verdict = verdict.model_copy(update={"diagnosis": explain(verdict)})
            tools.store.keep_result("verdict", key, verdict.to_plain())
        else:
            tools.console.current("verdict")
        write_verdict(path, verdict)
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
    subject = _subject(source, locked, image, {})
    if gpu is not None:
        subject = replace(subject, target=find_target(gpu))
    smoke = source.recipe.smoke.model_copy(update={"require": levels})
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


def _kept_verdict(key: str, store: Store) -> Verdict | None:
    record = store.result("verdict", key)
    if record is None:
        return None
    try:
        return Verdict.from_json(canonical_json(record), source=f"verdict {key}")
    except InvalidDocumentError:
        return None


def _subject(source: RecipeFile, locked: Lock, image: BuiltImage, waived: dict[str, str]) -> Subject:
    recipe = source.recipe
    return Subject(
        recipe=recipe.name,
        image_id=image.image_id,
        lock_digest=locked.digest,
        waived=waived,
        serve=recipe.serve,
        served=served_digest(recipe),
        target=find_target(recipe.target.gpu),
        installed=image.installed,
        built=built_packages(recipe),
        stack=tuple(sorted(recipe.stack)),
        overrides=tuple(sorted(recipe.overrides)),
        driver_cuda=native_cuda(recipe.host.driver) if recipe.host else None,
    )
