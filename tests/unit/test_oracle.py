"""The oracle: what of an answer is judged, in which order, and what it says."""

from __future__ import annotations

import pytest

from builder.verify.oracle import Band, Observation, judge_answer
from builder.verify.tiny.program import Expectation

EXPECTED = Expectation(tokens=(4, 5, 6, 7), mean_margin=5.0, min_margin=4.0)


def seen(*margins: float | None, tokens: tuple[int, ...] = EXPECTED.tokens) -> Observation:
    return Observation(tokens=tokens, margins=margins)


def test_the_golden_answer_is_right() -> None:
    judgement = judge_answer(EXPECTED, seen(4.0, 5.0, 5.0, 6.0))
    assert judgement.cause is None
    assert judgement.figures == {
        "tokens": 4,
        "tokens_right": 4,
        "finite": True,
        "mean_margin": 5.0,
        "golden_mean_margin": 5.0,
        "mean_margin_ratio": 1.0,
        "min_margin": 4.0,
        "min_margin_ratio": 1.0,
        "golden_min_margin": 4.0,
    }


@pytest.mark.parametrize("mean", [4.76, 5.24])
def test_a_mean_margin_inside_five_percent_passes(mean: float) -> None:
    assert judge_answer(EXPECTED, seen(mean, mean, mean, mean)).cause is None


@pytest.mark.parametrize("mean", [4.74, 5.26])
def test_a_mean_margin_outside_five_percent_fails_and_says_both_margins(mean: float) -> None:
    cause = judge_answer(EXPECTED, seen(mean, mean, mean, mean)).cause
    assert cause is not None
    assert f"{mean:.3f}" in cause
    assert "the reference's 5.000 (95% to 105% are allowed)" in cause


def test_a_smallest_margin_of_six_tenths_passes_and_one_below_fails() -> None:
    assert judge_answer(EXPECTED, seen(2.4, 5.8, 5.8, 6.0)).cause is None
    cause = judge_answer(EXPECTED, seen(2.3, 5.9, 5.8, 6.0)).cause
    assert cause is not None
    assert cause.startswith(
        "all tokens are right, but the smallest margin is 2.300, below 60% of the reference's 4.000"
    )


def test_a_wrong_token_is_named_by_its_place() -> None:
    judgement = judge_answer(EXPECTED, seen(4.0, 5.0, 5.0, 6.0, tokens=(4, 9, 6, 8)))
    assert judgement.cause == ("2 of 4 tokens are wrong, the first at decoded token 2: 5 expected, 9 seen")
    assert judgement.figures["tokens_right"] == 2


def test_wrong_tokens_come_before_margins() -> None:
    cause = judge_answer(EXPECTED, seen(0.1, 0.1, 0.1, 0.1, tokens=(1, 1, 1, 1))).cause
    assert cause is not None
    assert "4 of 4 tokens are wrong" in cause


def test_logits_that_are_not_finite_come_before_everything() -> None:
    judgement = judge_answer(EXPECTED, seen(4.0, None, 5.0, None, tokens=(4, 0, 0, 0)))
    assert judgement.cause == "the logits are not finite from decoded token 2 on"
    assert judgement.figures["finite"] is False


def test_an_answer_without_one_finite_margin_is_judged_too() -> None:
    judgement = judge_answer(EXPECTED, seen(None, None, None, None, tokens=(0, 0, 0, 0)))
    assert judgement.cause == "the logits are not finite from decoded token 1 on"
    assert judgement.figures["mean_margin"] == 0.0


def test_an_answer_of_another_length_is_wrong() -> None:
    assert judge_answer(EXPECTED, seen(5.0, 5.0, tokens=(4, 5))).cause == "2 tokens were decoded instead of 4"


def test_the_band_can_be_narrower() -> None:
    answer = seen(4.1, 5.0, 5.1, 5.9)
    assert judge_answer(EXPECTED, answer).cause is None
    assert judge_answer(EXPECTED, answer, Band(mean=0.001)).cause is not None
