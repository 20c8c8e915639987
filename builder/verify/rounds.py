"""Which requests a stack is given, alone and together, and the judgement over all of its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.verify.oracle import Figures, Judgement, Observation, judge_answer

if TYPE_CHECKING:
    from builder.verify.oracle import Band
    from builder.verify.tiny.model import TinyModel

Rounds = tuple[tuple[int, ...], ...]
Answers = tuple[tuple[Observation, ...], ...]

# Requests by their place in the model; those of one round are given at the same time. The second shares its beginning
# with the first, so that a cached prefix counts; then come both at once, the other way round.
ALONE_AND_TOGETHER: Rounds = ((0,), (1,), (1, 0))
# A server keeps caches and graphs between requests: the first comes again before and after it has company.
SERVED: Rounds = ((0,), (1,), (0,), (1, 0), (0, 1, 0, 1))


def rounds_request(model: TinyModel, rounds: Rounds) -> list[list[dict[str, Any]]]:
    """Return the rounds as a probe reads them."""
    return [[model.requests[place].to_plain() for place in together] for together in rounds]


def judge_rounds(model: TinyModel, rounds: Rounds, answers: Answers, band: Band) -> Judgement:
    """Judge all answers; the cause names the first wrong one, the figures are those of the first request and sums."""
    causes: list[str] = []
    judged: list[Judgement] = []
    for number, (together, seen) in enumerate(zip(rounds, answers, strict=True)):
        for place, answer in zip(together, seen, strict=True):
            judged.append(judge_answer(model.expected[place], answer, band))
            if judged[-1].cause:
                causes.append(f"{_title(rounds, number, place)}{judged[-1].cause}")
    return Judgement(cause=causes[0] if causes else None, figures=judged[0].figures | _sums(judged))


def _sums(judged: list[Judgement]) -> Figures:
    """Return what all answers together show, in the extremes of their margins."""
    ratios = [float(one.figures["mean_margin_ratio"]) for one in judged]
    return {
        "answers": len(judged),
        "all_tokens": sum(int(one.figures["tokens"]) for one in judged),
        "all_tokens_right": sum(int(one.figures["tokens_right"]) for one in judged),
        "lowest_mean_margin_ratio": min(ratios),
        "highest_mean_margin_ratio": max(ratios),
        "lowest_min_margin_ratio": min(float(one.figures["min_margin_ratio"]) for one in judged),
    }


def _title(rounds: Rounds, number: int, place: int) -> str:
    together = rounds[number]
    if len(together) > 1:
        return f"request {place + 1} among {len(together)} at once: "
    if place in {earlier for group in rounds[:number] for earlier in group}:
        return f"request {place + 1} again: "
    return "" if place == 0 else f"request {place + 1}, which shares its beginning with the first: "
