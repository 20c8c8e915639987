"""A diagnosis and a class of failures in words for people."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from builder.diagnose.knowledge import knowledge_with
from builder.diagnose.model import UNKNOWN
from builder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.diagnose.knowledge import Knowledge
    from builder.diagnose.model import Cause, Diagnosis
    from builder.diagnose.schema import Finding
    from builder.verify.reported import Evidence

WIDTH = 160
_UNKNOWN_TEXT = (
    "unknown: something failed, and nothing that is known fits its lines.\n\n"
    "The salient lines are shown as they are. Rerun with CUDA_LAUNCH_BLOCKING=1, without CUDA graphs and without\n"
    "speculation; then the visible frame is the true one. What you find can go into findings/*.yaml."
)


def render(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as text for a terminal, most important things first."""
    return "\n".join(_lines(diagnosis)) + "\n"


def explain(name: str, *, findings: Path | None = None) -> str:
    """Return what is known about a class; raise UsageError with the nearest names if there is none such."""
    knowledge = knowledge_with(findings)
    if name == UNKNOWN:
        return _UNKNOWN_TEXT
    if name not in knowledge.classes:
        near = difflib.get_close_matches(name, knowledge.classes, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(knowledge.classes))}"
        raise UsageError(f"no class of failures is called {name}", remedy=hint)
    return "\n".join(_explained(name, knowledge)) + "\n"


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    yield f"phase reached: {diagnosis.phase}"
    yield from _facts(diagnosis)
    if diagnosis.first is not None:
        first = diagnosis.first
        where = "".join(f", {part}" for part in (first.rank, first.time) if part)
        yield f"first failure: line {first.line}{where}: {_short(first.text)}"
    if not diagnosis.causes:
        yield "no cause found: nothing in the log is known to be wrong"
    for number, cause in enumerate(diagnosis.causes, start=1):
        yield ""
        yield from _cause(number, cause)
    yield from _listed("only consequences", diagnosis.consequences)
    if diagnosis.misleading:
        yield ""
        yield "looks guilty, and is not:"
        for line in diagnosis.misleading:
            yield f"  line {line.line}: {_short(line.text)}"
            yield f"    {line.why}"


def _facts(diagnosis: Diagnosis) -> Iterator[str]:
    facts = diagnosis.facts
    if facts.gpu is not None or facts.capability is not None:
        yield f"GPU: {facts.gpu or 'unnamed'} (compute capability {facts.capability or 'unknown'})"
    if facts.versions:
        yield "versions: " + ", ".join(f"{name} {version}" for name, version in sorted(facts.versions.items())[:24])


def _cause(number: int, cause: Cause) -> Iterator[str]:
    yield f"{number}. {cause.kind} ({cause.confidence:.0%}): {cause.cause}"
    for evidence in cause.evidence:
        yield f"   | {_place(evidence)}: {_short(evidence.text)}"
    for reason in cause.because:
        yield f"   + {reason}"
    yield f"   -> {cause.remedy}"
    for edit in cause.edits:
        reason = f"  # {edit.reason}" if edit.reason else ""
        yield f"      {edit.path}: {edit.value}{reason}"


def _listed(title: str, lines: tuple[Evidence, ...]) -> Iterator[str]:
    if lines:
        yield ""
        yield f"{title}:"
        for evidence in lines:
            yield f"  {_place(evidence)}: {_short(evidence.text)}"


def _place(evidence: Evidence) -> str:
    log = f"{evidence.log} " if evidence.log else ""
    rank = f" ({evidence.rank})" if evidence.rank else ""
    return f"{log}line {evidence.line}{rank}"


def _short(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def _explained(name: str, knowledge: Knowledge) -> Iterator[str]:
    about = knowledge.classes[name]
    yield f"{name}: {about.title}"
    yield ""
    yield about.about
    for finding in knowledge.findings:
        if finding.kind == name:
            yield ""
            yield from _finding(finding, knowledge)


def _finding(finding: Finding, knowledge: Knowledge) -> Iterator[str]:
    sure = "named by the log itself" if finding.direct else "inferred"
    yield f"* {finding.name} ({sure}, {finding.basis}): {finding.cause}"
    lines = knowledge.expand(finding.all[0].lines)
    shown = "; ".join(lines[:4])
    yield f"  seen as: {shown}" + (f"; and {len(lines) - 4} more" if len(lines) > 4 else "")
    yield f"  remedy: {finding.remedy}"
    for edit in finding.edits:
        yield f"    {edit.path}: {edit.value}"
    for source in finding.sources:
        yield f"  source: {source}"
