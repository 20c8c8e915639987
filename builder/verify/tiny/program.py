"""The integer program that the weights compute: what every stack must answer, without any floating point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.document import Document
from builder.verify.tiny.splitmix import SplitMix64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.verify.tiny.config import Preset

PROMPT_SEED = 3
SECOND_PROMPT_SEED = 4
CALIBRATION_SEED = 99
CALIBRATION_TOKENS = 160


class Program(Document):
    """next token = t3[t2[t1[t0[x]]]] where x is the token `lag` positions before the last one, one table per layer."""

    lag: int
    tables: tuple[tuple[int, ...], ...]

    def next_token(self, sequence: Sequence[int]) -> int:
        """Return the token that must follow `sequence`, which is longer than `lag`."""
        token = sequence[len(sequence) - 1 - self.lag]
        for table in self.tables:
            token = table[token]
        return token

    def continuation(self, prompt: Sequence[int], count: int) -> tuple[int, ...]:
        """Return the `count` tokens that must follow `prompt`."""
        sequence = list(prompt)
        for _ in range(count):
            sequence.append(self.next_token(sequence))
        return tuple(sequence[len(prompt) :])


class Request(Document):
    """A prompt and how many tokens to decode greedily after it."""

    prompt: tuple[int, ...]
    new_tokens: int


class Expectation(Document):
    """What a right stack answers to a request: the program's tokens, and the reference's margins in logits."""

    tokens: tuple[int, ...]
    mean_margin: float
    min_margin: float


def drawn_prompt(preset: Preset, length: int, seed: int = PROMPT_SEED) -> tuple[int, ...]:
    """Return a prompt that begins with every usable token once, so that looking for a token by content finds it."""
    stream = SplitMix64(seed)
    every = stream.permutation(preset.usable_tokens)
    more = [stream.below(preset.usable_tokens) for _ in range(length - len(every))]
    return tuple(every + more)


def requests_of(preset: Preset) -> tuple[Request, ...]:
    """Return the requests of a smoke test: a long one, then one that shares its beginning and needs other answers."""
    first = drawn_prompt(preset, preset.prompt_tokens)
    other = drawn_prompt(preset, preset.prompt_tokens, SECOND_PROMPT_SEED)
    second = first[: preset.shared_tokens] + other[preset.shared_tokens :]
    return (
        Request(prompt=first, new_tokens=preset.new_tokens),
        Request(prompt=second, new_tokens=preset.second_new_tokens),
    )
