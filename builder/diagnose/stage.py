"""A failed stage -> the diagnosis of its log: what `make`, `build` and `smoke` say under an error or a bad verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.diagnose.diagnosing import diagnose
from builder.diagnose.knowledge import knowledge_with
from builder.diagnose.model import UNKNOWN
from builder.diagnose.reader import unheard
from builder.errors import EnvbuildError, InvalidDocumentError, ResolveError, UsageError
from builder.lock.stage import previous_lock
from builder.recipe.source import read_recipe
from builder.recipe.targets import find_target
from builder.recipe.workspace import workspace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from builder.diagnose.model import Diagnosis
    from builder.lock.model import Lock
    from builder.recipe.source import RecipeFile
    from builder.store import Store
    from builder.verify.reported import Evidence, Reported, ReportedCause
    from builder.verify.verdict import Check, Verdict

FINDINGS = "findings"
SHOWN_LINES = 3
_WIDTH = 160


def deciding_check(verdict: Verdict) -> Check | None:
    """Return the check that makes a verdict bad."""
    failed = [check for check in verdict.checks if check.outcome == "failed" and check.level in verdict.required]
    return failed[0] if failed else None


def diagnose_verdict(
    verdict: Verdict, source: RecipeFile, locked: Lock, store: Store, *, warn: Callable[[str], None] = unheard
) -> Diagnosis | None:
    """Diagnose the check that makes a verdict bad; None where the store has no log of it.

    Its log comes first. Where that tells nothing, as of margins that are off, the check's own sentence is diagnosed.
    `warn` hears of findings that cannot be read.
    """
    check = deciding_check(verdict)
    if check is None or check.log is None or not store.has(check.log):
        return None
    by_log = _diagnose(store.path(check.log), source, locked, warn)
    if _is_known(by_log):
        return by_log
    by_sentence = _diagnose((check.summary,), source, locked, unheard)
    return by_sentence if _is_known(by_sentence) else by_log


def explain_verdict(
    verdict: Verdict, source: RecipeFile, locked: Lock, store: Store, *, warn: Callable[[str], None] = unheard
) -> Reported | None:
    """Return what a bad verdict records of the log of its check; None if nothing known fits."""
    diagnosis = diagnose_verdict(verdict, source, locked, store, warn=warn)
    return diagnosis.reported if diagnosis is not None and _is_known(diagnosis) else None


def diagnose_error(
    error: EnvbuildError, source: RecipeFile | None, *, warn: Callable[[str], None] = unheard
) -> Diagnosis | None:
    """Diagnose what a failed stage left: its log, or else its evidence; None where that tells nothing.

    A log that nothing known fits gives a diagnosis of the class `unknown`. `source` is what the stage worked on;
    `warn` hears of findings that cannot be read.
    """
    locked = _lock_of(source)
    if error.log is not None and error.log.is_file():
        return _diagnose(error.log, source, locked, warn)
    diagnosis = _diagnose((error.message, *error.evidence), source, locked, warn)
    if isinstance(error, ResolveError) and diagnosis.phase != "resolve":
        return None  # what a server says is no answer to a lock that failed
    return diagnosis if _is_known(diagnosis) else None


def _lock_of(source: RecipeFile | None) -> Lock | None:
    try:
        return previous_lock(source) if source else None
    except (EnvbuildError, OSError):  # the stage that failed has said so
        return None


def brief_lines(report: Reported) -> Iterator[str]:
    """Yield the likeliest cause in a few lines: class, confidence, evidence, remedy, edits."""
    if not report.causes or report.causes[0].kind == UNKNOWN:
        yield "diagnosis: nothing that is known fits this log"
        return
    top, *others = report.causes
    yield f"diagnosis: {top.kind} ({top.confidence:.0%}), in phase {report.phase}"
    yield from (f"  | line {each.line}: {_short(each)}" for each in top.evidence[:SHOWN_LINES])
    yield f"  → {top.remedy}"
    yield from _edit_lines(top)
    if others:
        yield f"  less likely: {', '.join(f'{each.kind} ({each.confidence:.0%})' for each in others)}"


def _edit_lines(cause: ReportedCause) -> Iterator[str]:
    for edit in cause.edits:
        reason = f"  # {edit.reason}" if edit.reason else ""
        yield f"    {edit.path}: {edit.value}{reason}"


def _short(evidence: Evidence) -> str:
    return evidence.text if len(evidence.text) <= _WIDTH else f"{evidence.text[: _WIDTH - 1]}…"


def _is_known(diagnosis: Diagnosis) -> bool:
    return bool(diagnosis.causes) and diagnosis.causes[0].kind != UNKNOWN


def recipe_at(recipe: Path | None) -> RecipeFile | None:
    """Return the recipe that a stage worked on, if there was one and it can be read."""
    try:
        return read_recipe(recipe) if recipe is not None else None
    except (InvalidDocumentError, UsageError):
        return None


def _diagnose(
    log: Path | tuple[str, ...], source: RecipeFile | None, locked: Lock | None, warn: Callable[[str], None]
) -> Diagnosis:
    lines = log.open("rb") if not isinstance(log, tuple) else log
    if source is None:
        return diagnose(lines)
    return diagnose(
        lines,
        recipe=source.recipe,
        lock=locked,
        target=find_target(source.recipe.target.gpu).capability,
        findings=_readable(findings_of(source), warn),
    )


def findings_of(source: RecipeFile) -> Path:
    """Return the folder of the findings that belong to a recipe's project."""
    return workspace_of(source).root / FINDINGS


def _readable(findings: Path, warn: Callable[[str], None]) -> Path | None:
    """Return a folder of findings, unless one cannot be read: what failed is more than that."""
    try:
        knowledge_with(findings)
    except InvalidDocumentError as error:
        warn(f"{error.message}; diagnosed without findings/")
        return None
    except OSError as error:
        warn(f"{error.filename}: {error.strerror}; diagnosed without findings/")
        return None
    return findings
