"""Judges decoded tokens: all equal to the program, and as sure of it as the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.document import Document

if TYPE_CHECKING:
    from builder.verify.tiny.program import Expectation

Figures = dict[str, str | int | float | bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """How far margins may be from the reference's: `mean` as a share of its mean, `lowest` of its smallest.

    Chosen on float64 simulations: honest differences (bfloat16 residuals, FP8 caches, 4-bit activations) kept 96.7 to
    101.0 % of the mean and at least 71 % of the smallest margin, none of 28 was flagged, and 64 of 72 planted faults
    were caught. On one GPU the mean moved by less than 0.6 % between formats and attention kinds. Not yet calibrated
    on the 4-bit kernels of a GPU.
    """

    mean: float = 0.05
    lowest: float = 0.6


BAND = Band()
# Float32 on the CPU: Transformers 5.13.1 and 5.24.0 with torch 2.11 and 2.13 kept 1.0000 of the reference's mean and
# smallest margins (a difference of about 1e-6). RoPE's theta 10 % off (0.9957), a norm's epsilon of 1e-2 (0.9871) and
# a quarter of the top-k (1.0026) are outside, which the wide band cannot see.
EXACT = Band(mean=0.001, lowest=0.99)
# 16-bit numbers without 4-bit activations or an FP8 cache.
HALF = Band(mean=0.02, lowest=0.8)


def band_for(dtype: str) -> Band:
    """Return the band for a model that computes in one format throughout."""
    return EXACT if dtype == "float32" else HALF


class Observation(Document):
    """What a stack answered to one request: its tokens and, for each, the margin in logits (None: not finite)."""

    tokens: tuple[int, ...]
    margins: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Why an answer is wrong, in a sentence without subject (None: it is right), and its figures."""

    cause: str | None
    figures: Figures


def judge_answer(expected: Expectation, seen: Observation, band: Band = BAND) -> Judgement:
    """Judge one answer; the first of these is the cause: not finite, wrong tokens, mean margin, smallest margin."""
    finite = [margin for margin in seen.margins if margin is not None]
    mean = sum(finite) / len(finite) if finite else 0.0
    lowest = min(finite, default=0.0)
    figures: Figures = {
        "tokens": len(expected.tokens),
        "tokens_right": sum(a == b for a, b in zip(expected.tokens, seen.tokens, strict=False)),
        "finite": len(finite) == len(seen.margins),
        "mean_margin": round(mean, 4),
        "golden_mean_margin": round(expected.mean_margin, 4),
        "mean_margin_ratio": round(mean / expected.mean_margin, 4),
        "min_margin": round(lowest, 4),
        "min_margin_ratio": round(lowest / expected.min_margin, 4),
        "golden_min_margin": round(expected.min_margin, 4),
    }
    cause = (
        _not_finite(seen)
        or _wrong_tokens(expected, seen)
        or _mean_off(expected, mean, band)
        or _lowest_off(expected, lowest, band)
    )
    return Judgement(cause=cause, figures=figures)


def _not_finite(seen: Observation) -> str | None:
    if None not in seen.margins:
        return None
    return f"the logits are not finite from decoded token {seen.margins.index(None) + 1} on"


def _wrong_tokens(expected: Expectation, seen: Observation) -> str | None:
    if seen.tokens == expected.tokens:
        return None
    if len(seen.tokens) != len(expected.tokens):
        return f"{len(seen.tokens)} tokens were decoded instead of {len(expected.tokens)}"
    wrong = [place for place, token in enumerate(seen.tokens) if token != expected.tokens[place]]
    first = wrong[0]
    return (
        f"{len(wrong)} of {len(expected.tokens)} tokens are wrong, the first at decoded token {first + 1}: "
        f"{expected.tokens[first]} expected, {seen.tokens[first]} seen"
    )


def _mean_off(expected: Expectation, mean: float, band: Band) -> str | None:
    ratio = mean / expected.mean_margin
    if abs(ratio - 1.0) <= band.mean:
        return None
    return (
        f"all tokens are right, but the mean margin is {mean:.3f}, {ratio:.1%} of the reference's "
        f"{expected.mean_margin:.3f} ({1 - band.mean:.0%} to {1 + band.mean:.0%} are allowed): the arithmetic differs"
    )


def _lowest_off(expected: Expectation, lowest: float, band: Band) -> str | None:
    if lowest >= band.lowest * expected.min_margin:
        return None
    return (
        f"all tokens are right, but the smallest margin is {lowest:.3f}, below {band.lowest:.0%} of the reference's "
        f"{expected.min_margin:.3f}: the arithmetic of some tokens differs"
    )
