"""A stream of integers that is the same in every language and library: splitmix64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from builder.verify.tiny.floats import Array

_MASK = (1 << 64) - 1
_INCREMENT = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
GAIN_STEPS = 1000


class SplitMix64:
    """Draws integers, permutations and signs; the only source of variety in the checkpoint.

    Source of the constants: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def draw(self) -> int:
        """Return the next 64-bit integer."""
        self._state = (self._state + _INCREMENT) & _MASK
        word = self._state
        word = ((word ^ (word >> 30)) * _MIX_1) & _MASK
        word = ((word ^ (word >> 27)) * _MIX_2) & _MASK
        return word ^ (word >> 31)

    def below(self, bound: int) -> int:
        """Return an integer from 0 to bound - 1."""
        return self.draw() % bound

    def permutation(self, size: int) -> list[int]:
        """Return the numbers 0 to size - 1 in a drawn order (Fisher and Yates)."""
        order = list(range(size))
        for last in range(size - 1, 0, -1):
            other = self.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order

    def signs(self, size: int) -> Array:
        """Return a vector of +1 and -1."""
        return np.array([1.0 if self.draw() >> 63 else -1.0 for _ in range(size)])

    def gains(self, size: int) -> Array:
        """Return norm weights between 0.5 and 1.5, so that a norm weight ignored or swapped is seen."""
        return np.array([1.0 + 0.5 * (self.below(2 * GAIN_STEPS + 1) / GAIN_STEPS - 1.0) for _ in range(size)])
