"""The bisection itself: both ends proven, then the smallest difference; knows no engine and no disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from builder.document import Document
from builder.errors import UsageError
from builder.matrix.delta import smallest_difference, turning_point
from builder.matrix.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from builder.matrix.delta import Answer
    from builder.matrix.searching import Budget

T = TypeVar("T")


class Step(Document):
    """One run of a bisection: what was in it, how it ended, and how that was judged."""

    number: int
    what: str
    outcome: Outcome
    judged: Literal["good", "bad", "unjudged"]
    known: bool = False


class Bisection(Document):
    """The answer: what differs between a good run and a bad one, with both as proof, and every run.

    `unjudged` are differences that could not be told from the answer; `builds` and `minutes` are those of all runs.
    """

    end: Literal["found", "budget ended"]
    sentence: str
    difference: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    good: Outcome | None = None
    bad: Outcome | None = None
    steps: tuple[Step, ...] = ()
    builds: int = 0
    minutes: float = 0.0


class _BudgetEndedError(Exception):
    """The next run would be one too many."""


class Runs(Protocol):
    """Who runs what lies between good and bad, and remembers."""

    def recall(self, item: Hashable) -> Outcome | None:
        """Return the outcome of a run that was made before."""
        ...

    def run(self, what: str, item: Hashable) -> Outcome:
        """Make a run, shown as `what`."""
        ...


@dataclass(kw_only=True)
class Bisect:
    """A bisection: runs are recalled where they were made before."""

    runs: Runs
    budget: Budget
    on_step: Callable[[Bisection], None]
    steps: list[Step] = field(default_factory=list)
    spent: float = 0.0
    builds: int = 0
    _bad: Outcome | None = None
    _outcomes: dict[Hashable, Outcome] = field(default_factory=dict)

    def packages(self, moves: Sequence[T], lines: Callable[[T], Sequence[str]]) -> Bisection:
        """Find the smallest set of moves that turns a good lock bad."""

        def judge(chosen: tuple[T, ...]) -> Answer:
            return self._judge(f"{len(chosen)} of {len(moves)} changes", frozenset(chosen))

        try:
            self._prove_ends(frozenset(), frozenset(moves))
            found = smallest_difference(moves, judge)
        except _BudgetEndedError as ended:
            return self._end("budget ended", str(ended))
        difference = tuple(line for move in found.different for line in lines(move))
        words = (
            "this change breaks it" if len(found.different) == 1 else "one of these changes breaks it, or all together"
        )
        context = f", beside {len(found.common)} other changes that do not" if found.common else ""
        return self._end(
            "found",
            f"{words}{context}",
            difference=difference,
            good=self._outcomes[frozenset(found.common)],
            bad=self._outcomes[frozenset((*found.common, *found.different))],
        )

    def commits(self, line: Sequence[str]) -> Bisection:
        """Find the first bad commit of a line whose first is good and whose last is bad."""
        try:
            self._prove_ends(line[0], line[-1])
            turn = turning_point(len(line), lambda place: self._judge(line[place], line[place]))
        except _BudgetEndedError as ended:
            return self._end("budget ended", str(ended))
        bad, good = line[turn.bad], line[turn.good]
        unjudged = tuple(line[place] for place in turn.unjudged)
        sentence = f"{bad} is the first bad commit, {good} the last good one"
        if unjudged:
            sentence = f"the first bad commit is {bad}, or one of {len(unjudged)} before it that cannot be judged"
        return self._end(
            "found",
            sentence,
            difference=(bad,),
            unjudged=unjudged,
            good=self._outcomes[good],
            bad=self._outcomes[bad],
        )

    def _prove_ends(self, good: Hashable, bad: Hashable) -> None:
        """Run both ends; what the bad one fails of is what is sought, be it a proof or a compilation."""
        for name, item in (("good", good), ("bad", bad)):
            outcome = self._outcome(f"the {name} side", item)
            if outcome.result == "unverified" or (outcome.result == "good") != (name == "good"):
                raise UsageError(
                    f"the {name} side is {outcome.result}: {outcome.cause}",
                    remedy="a bisection needs a good side and a bad one, in this order",
                )
        self._bad = self._outcomes[bad]

    def _judge(self, what: str, item: Hashable) -> Answer:
        outcome = self._outcome(what, item)
        return _answer(outcome, self._bad or outcome)

    def _outcome(self, what: str, item: Hashable) -> Outcome:
        known = self.runs.recall(item)
        if known is None:
            self._check_budget()
        outcome = known or self.runs.run(what, item)
        if known is None:
            self.spent += outcome.minutes
            self.builds += outcome.built
        self._outcomes[item] = outcome
        judged = _answer(outcome, self._bad or outcome)
        self.steps.append(
            Step(number=len(self.steps) + 1, what=what, outcome=outcome, judged=judged, known=known is not None)
        )
        self.on_step(self._end("budget ended", "not finished"))
        return outcome

    def _check_budget(self) -> None:
        if self.budget.builds is not None and self.builds >= self.budget.builds:
            raise _BudgetEndedError(f"the budget of {self.budget.builds} builds ended")
        if self.budget.minutes is not None and self.spent >= self.budget.minutes:
            raise _BudgetEndedError(f"the budget of {self.budget.minutes:g} minutes ended")

    def _end(
        self,
        end: Literal["found", "budget ended"],
        sentence: str,
        *,
        difference: tuple[str, ...] = (),
        unjudged: tuple[str, ...] = (),
        good: Outcome | None = None,
        bad: Outcome | None = None,
    ) -> Bisection:
        return Bisection(
            end=end,
            sentence=sentence,
            difference=difference,
            unjudged=unjudged,
            good=good,
            bad=bad,
            steps=tuple(self.steps),
            builds=sum(step.outcome.built for step in self.steps),
            minutes=round(sum(step.outcome.minutes for step in self.steps), 3),
        )


def _answer(outcome: Outcome, bad: Outcome) -> Answer:
    """Return how a run counts: bad only if it fails as the bad side does; all else that fails is not judged."""
    if outcome.result == "good":
        return "good"
    return "bad" if outcome.fails_as(bad) else "unjudged"
