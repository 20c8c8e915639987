"""Number formats in NumPy, bit for bit: bfloat16, FP8 E4M3, and functions that no machine rounds differently."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Words = NDArray[np.uint16]
Octets = NDArray[np.uint8]

GRID = float(1 << 28)
E4M3_MAX = 448.0
E4M3_SMALLEST = 2.0**-9
E4M3_FINITE = 127
_BFLOAT16_SHIFT = 16
_HALF_BELOW = 0x7FFF


def settled(value: float) -> float:
    """Return `value` on a grid of 2^-28.

    exp, cos and pow may differ in the last bit between C libraries and processors; on this grid they do not. Every
    other operation of the construction is exact under IEEE 754, so that the checkpoint has the same bytes everywhere.
    """
    return round(value * GRID) / GRID


def cosine(angle: float) -> float:
    """Return cos(angle), settled."""
    return settled(math.cos(angle))


def sine(angle: float) -> float:
    """Return sin(angle), settled."""
    return settled(math.sin(angle))


def sigmoid(value: float) -> float:
    """Return the logistic function, settled."""
    return settled(1.0 / (1.0 + math.exp(-value)))


def silu(value: float) -> float:
    """Return value * sigmoid(value), settled."""
    return settled(value / (1.0 + math.exp(-value)))


def bfloat16_bits(values: Array) -> Words:
    """Return the nearest bfloat16 (ties to even) of finite values, as its 16 bits."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    odd = (bits >> np.uint64(_BFLOAT16_SHIFT)) & np.uint64(1)
    rounded: Words = ((bits + np.uint64(_HALF_BELOW) + odd) >> np.uint64(_BFLOAT16_SHIFT)).astype(np.uint16)
    return rounded


def bfloat16_values(bits: Words) -> Array:
    """Return the values of bfloat16 bits."""
    wide = bits.astype(np.uint32) << np.uint32(_BFLOAT16_SHIFT)
    return wide.view(np.float32).astype(np.float64)


def e4m3_values(octets: Octets) -> Array:
    """Return the values of FP8 E4M3FN bytes: 1 sign, 4 exponent bits (bias 7), 3 mantissa bits; 0x7F is NaN."""
    code = octets.astype(np.int64)
    exponent, mantissa = (code >> 3) & 15, code & 7
    magnitude = np.where(exponent == 0, mantissa * E4M3_SMALLEST, np.ldexp(8.0 + mantissa, exponent - 10))
    magnitude = np.where((code & 127) == E4M3_FINITE, np.nan, magnitude)
    return np.where(code >> 7, -magnitude, magnitude)


_E4M3_TABLE = e4m3_values(np.arange(E4M3_FINITE, dtype=np.uint8))


def e4m3_octets(values: Array) -> Octets:
    """Return the nearest E4M3FN byte (ties to even, saturating at 448) of non-negative values."""
    clipped = np.minimum(values, E4M3_MAX)
    above = np.clip(np.searchsorted(_E4M3_TABLE, clipped), 1, E4M3_FINITE - 1)
    middle = (_E4M3_TABLE[above - 1] + _E4M3_TABLE[above]) / 2
    takes_upper = (clipped > middle) | ((clipped == middle) & (above % 2 == 0))
    return np.where(takes_upper, above, above - 1).astype(np.uint8)
