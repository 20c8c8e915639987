"""The ledger of a search: each hypothesis with its variant, its outcome, whether it held, and what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from builder.diagnose.model import UNKNOWN
from builder.document import Document
from builder.matrix.outcome import Outcome
from builder.verify.reported import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.matrix.strategy import Choice, Proposal

Standing = Literal["start", "confirmed", "refuted", "open"]
Setting = Value | tuple[str, ...] | None
End = Literal["good", "none good", "budget ended", "unverified"]


class Row(Document):
    """One run. `standing` says what it did to its hypothesis; `known` runs were remembered and cost nothing."""

    number: int
    hypothesis: str
    edits: dict[str, Setting]
    outcome: Outcome
    standing: Standing
    known: bool = False


class Ledger(Document):
    """A whole search: how it ended, the edits that make the recipe good, and every run.

    `variants` counts the whole grid, `minutes` and `builds` what this call and those before it took.
    """

    recipe: str
    end: End
    sentence: str
    edits: dict[str, Setting] = {}
    rows: tuple[Row, ...] = ()
    variants: int = 1
    builds: int = 0
    minutes: float = 0.0


def hypothesis_of(proposal: Proposal, before: Outcome | None) -> str:
    """Return what a run asks, in words."""
    if before is None:
        return "the recipe as it is"
    kinds = [
        f"{suspicion.kind} ({suspicion.confidence:.0%})"
        for suspicion in before.suspicions
        if suspicion.kind != UNKNOWN and any(suspicion.edits.get(path) == to for path, to in proposal.changes.items())
    ]
    return f"{edits_text(proposal.changes)}" + (f" cures {' or '.join(kinds)}" if kinds else "")


def standing_of(before: Outcome | None, after: Outcome) -> Standing:
    """Return what a run did to its hypothesis that the failure before comes from what was changed."""
    if before is None:
        return "start"
    if after.came_further_than(before):
        return "confirmed"
    if after.failure == before.failure or before.came_further_than(after):
        return "refuted"
    return "open"


def edits_text(edits: Mapping[str, Choice]) -> str:
    """Return edits in one line, paths without their root where that says nothing."""
    return ", ".join(f"{_short(path)}={_shown(value)}" for path, value in edits.items())


def row_line(row: Row) -> str:
    """Return a run in one line for people."""
    known = ", known" if row.known else ""
    minutes = f", {row.outcome.minutes:.1f} min" if row.outcome.minutes >= 0.05 else ""
    standing = "" if row.standing == "start" else f" -> {row.standing}"
    return f"{row.number:3}. {row.hypothesis}: {row.outcome.result}{standing}{known}{minutes}"


def ledger_lines(ledger: Ledger) -> Iterator[str]:
    """Yield the ledger for people: every run with why it failed, then the edits that are the answer."""
    for row in ledger.rows:
        yield row_line(row)
        if row.outcome.result != "good":
            yield f"       {row.outcome.cause}"
    for path, value in ledger.edits.items():
        yield f"  {path}: {_shown(value)}"


def _short(path: str) -> str:
    for root in ("serve.args.", "serve.env.", "stack."):
        path = path.removeprefix(root)
    return path.removesuffix(".version")


def _shown(value: Choice) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case tuple():
            return f"[{', '.join(value)}]"
        case _:
            return str(value)
