"""Looking back by a distance with RoPE: how strongly each frequency counts, and the query that peaks at one offset."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from builder.verify.tiny.config import ROPE_THETA
from builder.verify.tiny.floats import cosine, settled, sine

if TYPE_CHECKING:
    from builder.verify.tiny.floats import Array

STRONGEST = 14.0
DECAY = 0.72
FLOOR = 3.0
SLOWEST = 1e-4
SOFT_NATS = 3.0
REACH = 200
NEGLIGIBLE_NATS = 25.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Offset:
    """A RoPE score that peaks `distance` positions back.

    With a key of (1, 0) in every pair, the score at distance d is, in nats,
    sum_j strengths[j] * cos(frequencies[j] * (d - distance)). `mass` is the share of the attention that the peak gets;
    the rest falls on its neighbours.
    """

    distance: int
    frequencies: tuple[float, ...]
    strengths: tuple[float, ...]
    mass: float

    @classmethod
    def sharp(cls, distance: int, rope_dim: int) -> Offset:
        """Return a score whose peak gets practically all attention.

        Fast frequencies tell neighbours apart and count most; slow ones exclude the peak's repetitions. Those below
        SLOWEST rad per position tell nothing within the longest prompt and do not count.
        """
        frequencies = rope_frequencies(rope_dim)
        strengths = [settled(STRONGEST * DECAY**index + FLOOR) for index in range(len(frequencies))]
        counted = tuple(
            0.0 if speed < SLOWEST else strength for strength, speed in zip(strengths, frequencies, strict=True)
        )
        return cls(distance=distance, frequencies=frequencies, strengths=counted, mass=1.0)

    def softened(self) -> Offset:
        """Return the same peak with only SOFT_NATS to its neighbours: a thermometer of the attention's scale."""
        steps = math.fsum(
            strength * (1.0 - cosine(speed)) for strength, speed in zip(self.strengths, self.frequencies, strict=True)
        )
        strengths = tuple(settled(strength * SOFT_NATS / steps) for strength in self.strengths)
        soft = replace(self, strengths=strengths)
        scores = [soft.score(distance) - soft.score(self.distance) for distance in range(self.distance + REACH + 1)]
        total = math.fsum(math.exp(score) for score in scores if score > -NEGLIGIBLE_NATS)
        return replace(soft, mass=settled(1.0 / total))

    def score(self, distance: int) -> float:
        """Return the score in nats at a distance."""
        away = distance - self.distance
        return math.fsum(
            strength * cosine(speed * away) for strength, speed in zip(self.strengths, self.frequencies, strict=True)
        )

    def query(self, phase: float = 0.0) -> Array:
        """Return the query [rope_dim] of interleaved pairs for keys whose every pair has the angle `phase` (radian)."""
        pairs = []
        for strength, speed in zip(self.strengths, self.frequencies, strict=True):
            angle = phase - self.distance * speed
            pairs += [strength * cosine(angle), strength * sine(angle)]
        return np.array(pairs)


def rope_frequencies(rope_dim: int) -> tuple[float, ...]:
    """Return the rotation of each pair in radian per position: theta^(-2j / rope_dim)."""
    return tuple(settled(ROPE_THETA ** (-2 * pair / rope_dim)) for pair in range(rope_dim // 2))
