"""A finding of the user's own, made from a failure and the edits that cured it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from builder.diagnose.model import UNKNOWN
from builder.diagnose.pattern import ANCHOR, PatternError, fold, pattern_of
from builder.document import canonical_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.diagnose.model import Diagnosis
    from builder.verify.reported import Edit

_LEARNED = 0.7
_SPECIAL = re.compile(r"[\\<>{}*^$]")
_FIGURE = re.compile(r"\d+")


def offered_finding(bad: Diagnosis, cure: Iterable[Edit], *, name: str) -> bytes:
    """Return a file for `findings/` that says: this failure was cured by these edits.

    Its lines are the evidence of the bad run's first cause with every figure left open; it stays below high confidence,
    for one cure proves little. Raises ValueError if the diagnosis has no evidence to recognise the failure by.
    """
    patterns = _patterns(bad)
    if not patterns:
        raise ValueError(f"{name}: the failure has no line that it could be recognised by")
    kind = bad.causes[0].kind if bad.causes[0].kind != UNKNOWN else name
    edits = [edit.to_plain() for edit in cure]
    finding: dict[str, Any] = {
        "name": name,
        "class": kind,
        "cause": f"seen once and cured by {', '.join(edit['path'] for edit in edits)}",
        "phase": bad.phase,
        "confidence": _LEARNED,
        "direct": False,
        "all": [{"lines": patterns[:1]}],
        "support": [{"lines": [pattern], "adds": 0.03} for pattern in patterns[1:3]],
        "remedy": "apply the edits that cured it before",
        "edits": edits,
        "basis": "reproduced",
    }
    document: dict[str, Any] = {"findings": [finding]}
    if kind == name:
        document["classes"] = {name: {"title": f"{name}, a failure of your own", "about": "Found by a search."}}
    return canonical_yaml(document)


def _patterns(bad: Diagnosis) -> list[str]:
    """Return patterns for the evidence of the first cause, the first failure first."""
    if not bad.causes:
        return []
    lines = [evidence.text for evidence in bad.causes[0].evidence]
    first = bad.first.text if bad.first is not None else None
    lines.sort(key=lambda text: text != first)
    return [pattern for text in lines if (pattern := _pattern(text)) is not None]


def _pattern(text: str) -> str | None:
    literal = _SPECIAL.sub(lambda found: "\\" + found[0], fold(text)[:200])
    source = _FIGURE.sub("*", literal).strip("* ")
    try:
        pattern_of(source)
    except PatternError:
        return None
    return source if len(source) >= ANCHOR else None
