"""The search itself: propose, run, learn, until one is good or nothing is left; knows no engine and no disk."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from builder.matrix.ledger import Ledger, Row, edits_text, hypothesis_of, standing_of
from builder.matrix.strategy import Proposal, Tried, factors_of, needed_changes, propose

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from builder.matrix.ledger import End
    from builder.matrix.outcome import Outcome
    from builder.matrix.strategy import Choice, Factor


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What a search may take: runs that build, and minutes; what is remembered costs neither."""

    builds: int | None = None
    minutes: float | None = None


class Trials(Protocol):
    """Who runs variants, and remembers."""

    def recall(self, edits: Mapping[str, Choice]) -> Outcome | None:
        """Return the outcome of a variant that was run before."""
        ...

    def run(self, row: int, hypothesis: str, edits: Mapping[str, Choice]) -> Outcome:
        """Run a variant."""
        ...


@dataclass(kw_only=True)
class Search:
    """A search over given axes or, without any, over the edits that the diagnoses of failed runs propose."""

    recipe: str
    axes: Sequence[Factor]
    own: Callable[[str], Choice]
    trials: Trials
    budget: Budget
    on_row: Callable[[Ledger], None]
    rows: list[Row] = field(default_factory=list)
    spent: float = 0.0
    builds: int = 0

    def find(self, *, smallest: bool) -> Ledger:
        """Run variants until one is good, none is left, or the budget ends; `smallest` drops needless edits."""
        while True:
            proposal = self._propose(builds=self._may_build())
            if proposal is None:
                return self._end(*self._why_nothing())
            if not self._affordable(proposal):
                return self._end("budget ended", f"the budget of {self.budget.minutes:g} minutes ended")
            outcome = self._step(proposal)
            if outcome.result == "unverified":
                return self._end("unverified", outcome.cause)
            if outcome.result == "good":
                edits = self._smallest(proposal.edits) if smallest else dict(proposal.edits)
                sentence = f"with {edits_text(edits)}" if edits else "the recipe as it is"
                return self._end("good", sentence, edits)

    def _propose(self, *, builds: bool) -> Proposal | None:
        """Return what to run next: given axes are gone through, proposed edits only while they change something."""
        return propose(self._factors(), self._history(), builds=builds, exhaustive=bool(self.axes))

    def _step(self, proposal: Proposal, hypothesis: str = "") -> Outcome:
        before = self._frontier()
        hypothesis = hypothesis or hypothesis_of(proposal, before)
        known = self.trials.recall(proposal.edits)
        number = len(self.rows) + 1
        outcome = known or self.trials.run(number, hypothesis, proposal.edits)
        if known is None:
            self.spent += outcome.minutes
            self.builds += outcome.built
        self.rows.append(
            Row(
                number=number,
                hypothesis=hypothesis,
                edits=dict(proposal.edits),
                outcome=outcome,
                standing=standing_of(before, outcome),
                known=known is not None,
            )
        )
        self.on_row(self._ledger("budget ended", "not finished"))
        return outcome

    def _smallest(self, edits: Mapping[str, Choice]) -> dict[str, Choice]:
        """Return the edits without those that are not needed: each that is not proven to be is taken away once."""
        kept = dict(edits)
        needed = needed_changes(self._factors(), self._history())
        for path in [path for path in edits if path not in needed] if len(edits) > 1 else ():
            fewer = {other: value for other, value in kept.items() if other != path}
            proposal = Proposal(edits=fewer, changes={path: self.own(path)})
            seen = next((row.outcome for row in self.rows if row.edits == fewer), None)
            if seen is None and not self._affordable(proposal):
                break
            if (seen or self._step(proposal, f"without {edits_text({path: kept[path]})}")).result == "good":
                kept = fewer
        return kept

    def _factors(self) -> tuple[Factor, ...]:
        if self.axes:
            return tuple(self.axes)
        suggested = [suspicion.edits for row in self.rows for suspicion in row.outcome.suspicions]
        return factors_of(self.own, suggested)

    def _history(self) -> tuple[Tried, ...]:
        return tuple(Tried(edits=row.edits, outcome=row.outcome) for row in self.rows)

    def _frontier(self) -> Outcome | None:
        return max((row.outcome for row in self.rows), key=lambda outcome: outcome.progress, default=None)

    def _may_build(self) -> bool:
        return not self.rows or self.budget.builds is None or self.builds < self.budget.builds

    def _affordable(self, proposal: Proposal) -> bool:
        in_time = self.budget.minutes is None or self.spent < self.budget.minutes
        return in_time or self.trials.recall(proposal.edits) is not None

    def _why_nothing(self) -> tuple[End, str]:
        if not self._may_build() and self._propose(builds=True) is not None:
            return "budget ended", f"the budget of {self.budget.builds} builds ended"
        if not self._factors():
            return "none good", "nothing to try: no diagnosis proposes an edit; give --axis NAME=VALUE,VALUE"
        left = self._variants() - len(self.rows)
        ruled = f"; {left} of {self._variants()} were not run: what was seen rules them out" if left > 0 else ""
        return "none good", f"none of {len(self.rows)} variants is good{ruled}"

    def _variants(self) -> int:
        return math.prod(len(factor.values) for factor in self._factors())

    def _end(self, end: End, sentence: str, edits: Mapping[str, Choice] | None = None) -> Ledger:
        ledger = self._ledger(end, sentence, edits)
        self.on_row(ledger)
        return ledger

    def _ledger(self, end: End, sentence: str, edits: Mapping[str, Choice] | None = None) -> Ledger:
        return Ledger(
            recipe=self.recipe,
            end=end,
            sentence=sentence,
            edits=dict(edits or {}),
            rows=tuple(self.rows),
            variants=self._variants(),
            builds=sum(row.outcome.built for row in self.rows),
            minutes=round(sum(row.outcome.minutes for row in self.rows), 3),
        )
