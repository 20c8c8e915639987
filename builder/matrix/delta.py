"""The smallest difference between a good set and a bad one: delta debugging, and bisection of an ordered line.

Both ask about a set or a place only once, and both take "cannot be judged" for an answer.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Answer = Literal["good", "bad", "unjudged"]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference(Generic[T]):
    """What is left between good and bad: with `common` alone it is good, with `different` besides it is bad."""

    common: tuple[T, ...]
    different: tuple[T, ...]


def smallest_difference(changes: Sequence[T], judge: Callable[[tuple[T, ...]], Answer]) -> Difference[T]:
    """Return the smallest difference between none of the changes (known good) and all of them (known bad).

    Where every set can be judged, one change is left after log2(n) questions, rounded up. Sets that cannot be judged
    cost more (A. Zeller, R. Hildebrandt: Simplifying and isolating failure-inducing input, 2002; there: dd), and may
    leave several changes: no part of them could be told from the rest.
    """
    asked = _Asked(tuple(changes), judge)
    good: frozenset[int] = frozenset()
    bad, parts = frozenset(range(len(changes))), 2
    while len(bad - good) > 1:
        pieces = _pieces(sorted(bad - good), min(parts, len(bad - good)))
        step = _narrower(good, bad, pieces, asked)
        if step is not None:
            finer = parts if step.keeps_parts else 3
            good, bad, parts = step.good, step.bad, max(finer - 1, 2)
        elif parts < len(bad - good):
            parts = min(2 * parts, len(bad - good))
        else:
            break
    return Difference(
        common=tuple(changes[index] for index in sorted(good)),
        different=tuple(changes[index] for index in sorted(bad - good)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    good: frozenset[int]
    bad: frozenset[int]
    keeps_parts: bool


class _Asked(Generic[T]):
    """Every answer that was given, so that no set is asked about twice."""

    def __init__(self, changes: tuple[T, ...], judge: Callable[[tuple[T, ...]], Answer]) -> None:
        self._changes = changes
        self._judge = judge
        self._answers: dict[frozenset[int], Answer] = {frozenset(): "good", frozenset(range(len(changes))): "bad"}

    def about(self, chosen: frozenset[int]) -> Answer:
        if chosen not in self._answers:
            self._answers[chosen] = self._judge(tuple(self._changes[index] for index in sorted(chosen)))
        return self._answers[chosen]


def _pieces(indices: list[int], count: int) -> list[frozenset[int]]:
    bounds = [len(indices) * part // count for part in range(count + 1)]
    return [frozenset(indices[start:end]) for start, end in itertools.pairwise(bounds)]


def _narrower(
    good: frozenset[int], bad: frozenset[int], pieces: list[frozenset[int]], asked: _Asked[T]
) -> _Step | None:
    """Return a smaller pair of a good and a bad set, or None if no piece could be told from the rest."""
    for piece in pieces:
        if asked.about(good | piece) == "bad":
            return _Step(good=good, bad=good | piece, keeps_parts=False)
        if asked.about(good | piece) == "good":
            return _Step(good=good | piece, bad=bad, keeps_parts=len(pieces) > 2)
        if asked.about(bad - piece) == "good":
            return _Step(good=bad - piece, bad=bad, keeps_parts=False)
        if asked.about(bad - piece) == "bad":
            return _Step(good=good, bad=bad - piece, keeps_parts=len(pieces) > 2)
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """Where a line turns from good to bad: the last good place and the first bad one, by index.

    `unjudged` are the places between them that could not be judged: each of them may be the first bad one too.
    """

    good: int
    bad: int
    unjudged: tuple[int, ...]


def turning_point(count: int, judge: Callable[[int], Answer]) -> Turn:
    """Return where a line of `count` places turns bad; place 0 is known good, the last one known bad.

    Asks about the middle; where that cannot be judged, about places ever farther from it (1, 2, 4, ... on both sides),
    since what does not compile often stands together.
    """
    good, bad, missed, unjudged = 0, count - 1, 0, set[int]()
    while rest := [place for place in range(good + 1, bad) if place not in unjudged]:
        middle = (good + bad) / 2
        rest.sort(key=lambda place: (abs(place - middle), place))
        place = rest[min(2**missed, len(rest)) - 1]
        match judge(place):
            case "good":
                good, missed = place, 0
            case "bad":
                bad, missed = place, 0
            case "unjudged":
                unjudged.add(place)
                missed += 1
    return Turn(good=good, bad=bad, unjudged=tuple(range(good + 1, bad)))
