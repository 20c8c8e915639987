"""Which variant to run next: a pure function of what was seen, so that a search goes on wherever it was stopped.

A run that fails says more than "bad": what failed, how far it came, and what its diagnosis suspects. A failure belongs
to one of the values that all runs with that failure share. So the next run changes those values that are most likely
to blame, half of them by weight where nothing is named, and prefers what costs no build.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from builder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from builder.matrix.outcome import Outcome

MOST_CELLS = 20_000
BUILD_COST = 4.0  # a run that compiles or assembles, in runs that need only the proof
_WRONG = {"own": 0.3, "given": 0.15, "suggested": 0.1}  # how likely a value is wrong before anything was seen
_UNNAMED = 0.3  # weight of a value that no diagnosis names, against the confidence of one that it names

Choice = str | int | float | bool | tuple[str, ...] | None
Cell = tuple[int, ...]
Pair = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Factor:
    """A place of the recipe and the values it may take, the recipe's own first (None: not there)."""

    path: str
    values: tuple[Choice, ...]

    @property
    def needs_build(self) -> bool:
        """Whether another value makes another image."""
        return not self.path.startswith("serve.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """A variant that was run: the edits that make it, and how it ended."""

    edits: Mapping[str, Choice]
    outcome: Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A variant to run next: all its edits, and the changes since the run that it starts from: the hypothesis."""

    edits: Mapping[str, Choice]
    changes: Mapping[str, Choice]


def factors_of(own: Callable[[str], Choice], suggested: Sequence[Mapping[str, Choice]]) -> tuple[Factor, ...]:
    """Return the factors of several suggested edits; `own` says what the recipe has at a path."""
    values: dict[str, list[Choice]] = {}
    for edits in suggested:
        for path, value in edits.items():
            known = values.setdefault(path, [own(path)])
            if value not in known:
                known.append(value)
    return tuple(Factor(path=path, values=tuple(found)) for path, found in values.items() if len(found) > 1)


def propose(
    factors: Sequence[Factor], history: Sequence[Tried], *, builds: bool = True, exhaustive: bool = True
) -> Proposal | None:
    """Return the variant that is worth most for its cost, or None if none is left that could be good.

    The first is the recipe as it is; without `builds` only variants of images that were built. A search that is not
    `exhaustive` ends where the furthest failure stays, whatever is changed. Raise UsageError if the factors make more
    variants than can be compared.
    """
    if not history:
        return Proposal(edits={}, changes={})
    knowledge = _Knowledge(factors=tuple(factors), history=tuple(history))
    if not exhaustive and knowledge.is_hopeless:
        return None
    cells = (cell for cell in knowledge.open_cells() if builds or knowledge.is_built(cell))
    cell = max(cells, key=knowledge.order, default=None)
    return None if cell is None else knowledge.proposal(cell)


def needed_changes(factors: Sequence[Factor], history: Sequence[Tried]) -> frozenset[str]:
    """Return the places whose own value is wrong for sure: with another one, all else equal, a run came further."""
    knowledge = _Knowledge(factors=tuple(factors), history=tuple(history))
    return frozenset(factors[index].path for index, value in knowledge.proven if value == 0)


@dataclass(frozen=True, kw_only=True)
class _Knowledge:
    """What the runs so far say about the values of the factors."""

    factors: tuple[Factor, ...]
    history: tuple[Tried, ...]
    _scores: dict[Cell, tuple[float, ...]] = field(default_factory=dict)

    @cached_property
    def runs(self) -> dict[Cell, Outcome]:
        """The outcome of each variant that was run."""
        return {self._cell(tried.edits): tried.outcome for tried in self.history}

    @cached_property
    def frontier(self) -> Cell:
        """The run that came furthest, the newest of several."""
        return max(enumerate(self.runs.items()), key=lambda entry: (entry[1][1].progress, entry[0]))[1][0]

    @cached_property
    def suspects(self) -> dict[str, frozenset[Pair]]:
        """The values that all runs with a failure share, by the failure."""
        found: dict[str, frozenset[Pair]] = {}
        for cell, outcome in self.runs.items():
            if outcome.result != "good":
                pairs = frozenset(enumerate(cell))
                found[outcome.failure] = found.get(outcome.failure, pairs) & pairs
        return found

    @cached_property
    def blame(self) -> dict[str, dict[Pair, float]]:
        """How a failure is shared out among its suspects; the parts add up to 1."""
        weights: dict[str, dict[Pair, float]] = {}
        for failure, pairs in self.suspects.items():
            named = self._named(failure)
            raw = {pair: self._weight(pair, named) for pair in sorted(pairs)}
            total = sum(raw.values())
            weights[failure] = {pair: weight / total for pair, weight in raw.items()}
        return weights

    @cached_property
    def wrong(self) -> dict[Pair, float]:
        """How likely each value is wrong."""
        found = {}
        for index, factor in enumerate(self.factors):
            for value in range(len(factor.values)):
                pair = (index, value)
                found[pair] = max(self._prior(pair), *(shares.get(pair, 0.0) for shares in self.blame.values()))
        return found

    @cached_property
    def proven(self) -> frozenset[Pair]:
        """Values that are wrong for sure: with another one, all else equal, the run came further."""
        found = set()
        for one, other in itertools.permutations(self.runs, 2):
            different = [index for index in range(len(one)) if one[index] != other[index]]
            if len(different) == 1 and self.runs[other].came_further_than(self.runs[one]):
                found.add((different[0], one[different[0]]))
        return frozenset(found)

    @property
    def is_hopeless(self) -> bool:
        """Whether the furthest failure stays, whatever is changed: its runs had every value and share none."""
        failure = self.runs[self.frontier].failure
        seen = [set(enumerate(cell)) for cell, outcome in self.runs.items() if outcome.failure == failure]
        every = {(index, value) for index, factor in enumerate(self.factors) for value in range(len(factor.values))}
        moved = any(all(index > 0 for index in cell) for cell in self.runs)
        return not self.suspects[failure] and moved and set().union(*seen) >= every - self.proven

    def open_cells(self) -> Iterator[Cell]:
        """Yield the variants that were not run and hold no value that is wrong for sure."""
        if math.prod(len(factor.values) for factor in self.factors) > MOST_CELLS:
            raise UsageError(
                f"these axes make more than {MOST_CELLS} variants", remedy="give fewer axes, or fewer values of each"
            )
        allowed = [
            [value for value in range(len(factor.values)) if (index, value) not in self.proven]
            for index, factor in enumerate(self.factors)
        ]
        yield from (cell for cell in itertools.product(*allowed) if cell not in self.runs)

    def order(self, cell: Cell) -> tuple[float, ...]:
        """Return what a variant is worth: one that shares all suspects of a failure comes after all others."""
        changed = [index for index, value in enumerate(cell) if value != self.frontier[index]]
        return (not self._repeats(cell), self._worth(cell, changed), -len(changed), *(-value for value in cell))

    def proposal(self, cell: Cell) -> Proposal:
        """Return a variant as its edits, and as changes of the run that came furthest."""
        edits = {each.path: each.values[index] for each, index in zip(self.factors, cell, strict=True) if index}
        changes = {
            factor.path: factor.values[index]
            for factor, index, before in zip(self.factors, cell, self.frontier, strict=True)
            if index != before
        }
        return Proposal(edits=edits, changes=changes)

    def _cell(self, edits: Mapping[str, Choice]) -> Cell:
        return tuple(factor.values.index(edits[factor.path]) if factor.path in edits else 0 for factor in self.factors)

    def _repeats(self, cell: Cell) -> bool:
        pairs = set(enumerate(cell))
        return any(shared and shared <= pairs for shared in self.suspects.values())

    def _worth(self, cell: Cell, changed: Sequence[int]) -> float:
        good = math.prod(1 - self.wrong[pair] for pair in enumerate(cell))
        failure = self.runs[self.frontier].failure
        shares, named = self.blame[failure], self._named(failure)
        moved = sum(shares.get((index, self.frontier[index]), 0.0) for index in changed)
        sound = math.prod(1 - self.wrong[index, cell[index]] for index in changed)
        sure = max((confidence for confidence, _ in named.values()), default=0.0)
        told = sure * moved + (1 - sure) * _bits(moved)
        return ((1 - sure) * good + told * sound) / (1.0 if self.is_built(cell) else BUILD_COST)

    def is_built(self, cell: Cell) -> bool:
        """Whether a variant needs only the proof: it has the image of one that was run."""
        builds = [index for index, factor in enumerate(self.factors) if factor.needs_build]
        return any(all(cell[index] == other[index] for index in builds) for other in self.runs)

    def _prior(self, pair: Pair) -> float:
        index, value = pair
        if value == 0:
            return _WRONG["own"]
        path, choice = self.factors[index].path, self.factors[index].values[value]
        named = any(
            suspicion.edits.get(path) == choice for outcome in self.runs.values() for suspicion in outcome.suspicions
        )
        return _WRONG["suggested" if named else "given"]

    def _named(self, failure: str) -> dict[str, tuple[float, Choice]]:
        """Return the factors that the diagnosis of a failure names, with its confidence and the value it asks for."""
        paths = {factor.path for factor in self.factors}
        named: dict[str, tuple[float, Choice]] = {}
        for outcome in self.runs.values():
            for suspicion in outcome.suspicions if outcome.failure == failure else ():
                for path, value in suspicion.edits.items():
                    if path in paths:
                        named.setdefault(path, (suspicion.confidence, value))
        return named

    def _weight(self, pair: Pair, named: Mapping[str, tuple[float, Choice]]) -> float:
        factor = self.factors[pair[0]]
        if not named:
            return 1.0
        confidence, value = named.get(factor.path, (0.0, None))
        if factor.path in named and factor.values[pair[1]] != value:
            return confidence
        return _UNNAMED * (1 - max(sure for sure, _ in named.values())) + 0.02


def _bits(share: float) -> float:
    """Return what an answer tells that is yes with this probability, in bits."""
    if not 0 < share < 1:
        return 0.0
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)
