"""Delta debugging and bisection as pure functions: what they find, how often they ask, never twice."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.matrix.delta import smallest_difference, turning_point

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.matrix.delta import Answer


class Once:
    """Answers, and fails if it is asked the same twice."""

    def __init__(self, answer: Callable[[tuple[int, ...]], Answer]) -> None:
        self.answer = answer
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, chosen: tuple[int, ...]) -> Answer:
        assert chosen not in self.asked
        self.asked.append(chosen)
        return self.answer(chosen)


def blaming(culprit: int) -> Callable[[tuple[int, ...]], Answer]:
    return lambda chosen: "bad" if culprit in chosen else "good"


@pytest.mark.parametrize("count", [1, 2, 3, 7, 30, 64])
def test_one_culprit_is_found_with_the_logarithm_of_questions(count: int) -> None:
    for culprit in range(count):
        judge = Once(blaming(culprit))
        found = smallest_difference(range(count), judge)
        assert found.different == (culprit,)
        assert culprit not in found.common
        assert len(judge.asked) <= math.ceil(math.log2(count))


def test_thirty_packages_and_both_ends_are_seven_builds() -> None:
    judge = Once(lambda chosen: "bad" if 23 in chosen else "good")
    assert smallest_difference(range(30), judge).different == (23,)
    assert len(judge.asked) + 2 <= 7


@given(st.integers(1, 24), st.sets(st.integers(0, 23), min_size=1, max_size=3), st.booleans())
@settings(max_examples=200, deadline=None)
def test_several_culprits_leave_one_change_between_a_good_and_a_bad_set(
    count: int, culprits: set[int], together: bool
) -> None:
    wrong = {culprit % count for culprit in culprits}

    def answer(chosen: tuple[int, ...]) -> Answer:
        return "bad" if (wrong <= {*chosen} if together else wrong & {*chosen}) else "good"

    judge = Once(answer)
    found = smallest_difference(range(count), judge)
    assert len(found.different) == 1
    assert {*found.different} <= wrong
    assert answer(found.common) == "good"
    assert answer((*found.common, *found.different)) == "bad"
    assert len(judge.asked) <= math.ceil(math.log2(count))


@given(st.integers(2, 12), st.integers(0, 10_000))
@settings(max_examples=200, deadline=None)
def test_sets_that_cannot_be_judged_leave_a_true_pair_of_a_good_and_a_bad_set(count: int, seed: int) -> None:
    chance = random.Random(seed)
    culprit = chance.randrange(count)
    needs = [(chance.randrange(count), chance.randrange(count)) for _ in range(chance.randrange(5))]

    def answer(chosen: tuple[int, ...]) -> Answer:
        if any(one in chosen and other not in chosen for one, other in needs):
            return "unjudged"
        return "bad" if culprit in chosen else "good"

    judge = Once(answer)
    found = smallest_difference(range(count), judge)
    assert culprit in found.different
    assert answer(tuple(sorted(found.common))) == "good"
    assert answer(tuple(sorted((*found.common, *found.different)))) == "bad"
    assert needs or len(judge.asked) <= math.ceil(math.log2(count))


def turn(count: int, first_bad: int, broken: set[int]) -> tuple[int, int, int]:
    asked: list[int] = []

    def judge(place: int) -> Answer:
        assert place not in asked
        assert 0 < place < count - 1
        asked.append(place)
        return "unjudged" if place in broken else "bad" if place >= first_bad else "good"

    found = turning_point(count, judge)
    assert found.good < first_bad <= found.bad
    assert {*found.unjudged} <= broken
    return found.good, found.bad, len(asked)


def test_sixty_four_commits_of_which_ten_in_a_row_do_not_compile() -> None:
    for first_bad in range(1, 64):
        broken = set(range(28, 38))
        good, bad, asked = turn(64, first_bad, broken)
        if not broken & {first_bad - 1, first_bad}:
            assert (good, bad) == (first_bad - 1, first_bad)
            assert asked <= 12
        assert asked <= 6 + len(broken)


@given(st.integers(2, 80), st.integers(1, 79), st.sets(st.integers(1, 78), max_size=12))
@settings(max_examples=300, deadline=None)
def test_the_turn_is_found_whatever_cannot_be_judged(count: int, first_bad: int, broken: set[int]) -> None:
    first_bad = 1 + first_bad % (count - 1)
    inner = {place for place in broken if 0 < place < count - 1}
    good, bad, asked = turn(count, first_bad, inner)
    assert asked <= math.ceil(math.log2(count)) + len(inner)
    assert all(place in inner for place in range(good + 1, bad))
