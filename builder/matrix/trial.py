"""One run: a variant of a recipe goes the road in a folder of its own, and its outcome is remembered."""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from builder.build.assembly import has_packages
from builder.build.stage import build_recipe, find_plan
from builder.build.wheelstage import compile_recipe
from builder.diagnose.model import UNKNOWN
from builder.diagnose.stage import deciding_check, diagnose_error, diagnose_verdict, explain_verdict
from builder.document import canonical_json, key_of
from builder.download import DownloadError, NotFoundError
from builder.errors import BuildFailedError, InvalidDocumentError, PreflightRefusedError, ResolveError
from builder.lock.examine import facts_of
from builder.lock.stage import lock_recipe, previous_lock
from builder.matrix.outcome import Outcome, Suspicion
from builder.matrix.variant import edited
from builder.preflight.examine import preflight
from builder.preflight.findings import refuse
from builder.recipe.workspace import workspace_of
from builder.verify.grounds import grounds_of
from builder.verify.stage import smoke_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from builder.diagnose.model import Diagnosis
    from builder.errors import EnvbuildError
    from builder.lock.model import Lock
    from builder.matrix.outcome import Result
    from builder.matrix.strategy import Choice
    from builder.preflight.findings import Finding
    from builder.recipe.source import RecipeFile
    from builder.store import Store
    from builder.tools import Tools
    from builder.verify.reported import Phase
    from builder.verify.verdict import Check, Verdict

TRIAL = "trial"
TAG = "try-"
_LONGEST = 200
_PROBED: dict[str, Phase] = {
    "start": "container start",
    "import": "import",
    "load": "model load",
    "prefill": "prefill",
    "decode": "decode",
    "done": "decode",
}
_CHANGING = re.compile(r"0x[0-9a-f]+|[0-9]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """Where the variants of a recipe are tried: below `root`, one folder for each lock and verdict."""

    source: RecipeFile
    root: Path

    def variant(self, edits: Mapping[str, Choice]) -> RecipeFile:
        """Return a variant of the recipe; raise InvalidDocumentError if the edits make no recipe."""
        name = key_of({path: edits[path] for path in sorted(edits)})[:16]
        return replace(edited(self.source, edits), root=self.root / name)


def recall(bench: Bench, edits: Mapping[str, Choice], tools: Tools) -> Outcome | None:
    """Return the outcome of a variant that was run before: nothing that it depends on has changed since."""
    try:
        return recalled(trial_key(bench, edits), tools.store)
    except InvalidDocumentError:
        return None


def try_variant(bench: Bench, edits: Mapping[str, Choice], tools: Tools) -> Outcome:
    """Run a variant: preflight, lock, build, proof; remember what was compiled in vain and what was proven.

    Raise what is no answer about the variant: no engine, no network, a full disk.
    """
    try:
        variant, key = bench.variant(edits), trial_key(bench, edits)
    except InvalidDocumentError as error:
        return Outcome(result="refused", cause=error.message, failure=f"recipe: {error.message}")
    return remembered(key, tools.store, lambda: _go(variant, bench.source, tools))


def compile_variant(bench: Bench, edits: Mapping[str, Choice], tools: Tools) -> None:
    """Compile what a variant compiles, so that all that compile the same find it; raise what its run would end with."""
    variant = bench.variant(edits)
    compile_recipe(variant, _lock(variant, previous_lock(bench.source), tools), tools)


def remembered(key: str, store: Store, run: Callable[[], Outcome]) -> Outcome:
    """Return the outcome of a run with its minutes, kept under its key if it says something about the variant."""
    start = time.monotonic()
    outcome = run()
    outcome = outcome.model_copy(update={"minutes": round((time.monotonic() - start) / 60, 3)})
    if outcome.is_judged or outcome.result == "unbuildable":
        store.keep_result(TRIAL, key, outcome.to_plain())
    return outcome


def recalled(key: str, store: Store) -> Outcome | None:
    """Return the outcome that is kept under a key."""
    record = store.result(TRIAL, key)
    try:
        return None if record is None else Outcome.from_json(canonical_json(record), source=TRIAL)
    except InvalidDocumentError:
        return None


def trial_key(bench: Bench, edits: Mapping[str, Choice]) -> str:
    """Return the key over all that the outcome of a variant depends on; raise InvalidDocumentError if it is none."""
    return grounds_of(edited(bench.source, edits), previous_lock(bench.source)).key


def _go(variant: RecipeFile, source: RecipeFile, tools: Tools) -> Outcome:
    base = previous_lock(source)
    try:
        refuse(preflight(variant.recipe), str(variant.path))
        locked = _lock(variant, base, tools)
        findings = preflight(variant.recipe, facts_of(locked))
        refuse(findings, str(variant.path))
    except PreflightRefusedError as error:
        return Outcome(result="refused", cause=error.message, failure=_fold(error.message))
    except ResolveError as error:
        if _is_transient(error):
            raise
        return _of_error(error, "unresolvable", variant)
    is_own = variant.recipe == source.recipe and base is not None and base.digest == locked.digest
    return prove_locked(variant, locked, tools, findings, tag=source.tag if is_own else variant_tag(variant.root))


def prove_locked(
    variant: RecipeFile, locked: Lock, tools: Tools, findings: tuple[Finding, ...] = (), *, tag: str
) -> Outcome:
    """Build and prove a locked variant; what does not compile is an outcome, not an error.

    A variant whose packages are compiled and packed already counts as built: only its papers and labels are its own.
    """
    placed = replace(variant, tag=tag)
    built = not _was_built(placed, locked, tools)
    try:
        image = build_recipe(placed, locked, tools)
    except BuildFailedError as error:
        if error.log is None:
            raise
        return _of_error(error, "unbuildable", variant).model_copy(update={"lock_digest": locked.digest, "built": True})
    explain = partial(explain_verdict, source=variant, locked=locked, store=tools.store, warn=tools.console.warn)
    verdict = smoke_recipe(placed, locked, image, tools, findings=findings, explain=explain)
    diagnosis = diagnose_verdict(verdict, variant, locked, tools.store)
    return _of_verdict(verdict, diagnosis).model_copy(update={"built": built})


def variant_tag(root: Path | None) -> str:
    """Return the tag of a variant's image, by the folder that the variant has."""
    return f"{TAG}{root.name if root else ''}"


def _was_built(placed: RecipeFile, locked: Lock, tools: Tools) -> bool:
    plan = find_plan(placed, locked, tools.store)
    if plan is None:
        return False
    # The wheels of an image that was made need not be laid out again, which takes seconds.
    return tools.store.result("image", plan.key) is not None or has_packages(plan, tools.store)


def _lock(variant: RecipeFile, base: Lock | None, tools: Tools) -> Lock:
    """Lock a variant, starting from the recipe's own lock: what the edits do not touch stays."""
    folder = workspace_of(variant).lock
    if base is not None and not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(workspace_of(replace(variant, root=None)).lock, folder)
    return lock_recipe(variant, tools)


def _is_transient(error: ResolveError) -> bool:
    """Whether the network failed, which says nothing about the pins."""
    cause = error if isinstance(error, DownloadError) else error.__context__
    return isinstance(cause, DownloadError) and not isinstance(cause, NotFoundError)


def _of_error(error: EnvbuildError, result: Result, variant: RecipeFile) -> Outcome:
    diagnosis = diagnose_error(error, variant)
    first = diagnosis.first.text if diagnosis and diagnosis.first else error.message
    return Outcome(
        result=result,
        cause=error.message,
        failure=_failure(result, diagnosis, first),
        phase=diagnosis.phase if diagnosis else "unknown",
        suspicions=_suspicions(diagnosis),
        log=str(error.log) if error.log else None,
    )


def _of_verdict(verdict: Verdict, diagnosis: Diagnosis | None) -> Outcome:
    check = deciding_check(verdict)
    name = check.name if check else ""
    first = diagnosis.first.text if diagnosis and diagnosis.first else verdict.cause
    return Outcome(
        result=verdict.result,
        cause=verdict.cause,
        failure=_failure(name, diagnosis, first) if verdict.result != "good" else "",
        level=check.level if check else "",
        phase=_phase(check, diagnosis),
        suspicions=_suspicions(diagnosis),
        lock_digest=verdict.lock_digest,
        image_id=verdict.image_id,
        log=check.log if check else None,
    )


def _phase(check: Check | None, diagnosis: Diagnosis | None) -> Phase:
    """Return how far a run came: as its log tells, else as the probe itself says."""
    if diagnosis is not None and diagnosis.phase != "unknown":
        return diagnosis.phase
    return _PROBED.get(str(check.figures.get("phase")), "unknown") if check else "unknown"


def _failure(where: str, diagnosis: Diagnosis | None, first: str) -> str:
    """Return what the same failure is called in every run: the finding that explains it, else its first line."""
    top = diagnosis.causes[0] if diagnosis and diagnosis.causes else None
    what = top.finding if top is not None and top.kind != UNKNOWN else _fold(first)
    return f"{where}: {what}"


def _fold(text: str) -> str:
    """Return a line without what changes from run to run: numbers and addresses."""
    return " ".join(_CHANGING.sub("#", text).split())[:_LONGEST]


def _suspicions(diagnosis: Diagnosis | None) -> tuple[Suspicion, ...]:
    return tuple(
        Suspicion(kind=cause.kind, confidence=cause.confidence, edits={edit.path: edit.value for edit in cause.edits})
        for cause in (diagnosis.causes if diagnosis else ())
        if cause.kind != UNKNOWN
    )
