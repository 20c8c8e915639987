"""The reference's elementary operations in float64: products, RoPE, softmax, the causal mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from builder.verify.tiny.floats import Array

Mask = NDArray[np.bool_]

WORTH_THREADS = 1 << 26
"""Multiplications from which on threads pay; every product of the preset `small` is below."""


def product(rows: Array, columns: Array) -> Array:
    """Return rows @ columns^T for [m, k] and [n, k]; small products in one thread, without a BLAS library.

    A BLAS starts a thread for each core; on small matrices they mostly wait for each other, and on a busy machine they
    take minutes for what one thread does in a second.
    """
    if rows.size * len(columns) > WORTH_THREADS:
        return rows @ columns.T
    result: Array = np.einsum("mk,nk->mn", rows, columns)
    return result


def rotate_interleaved(values: Array, positions: Array, theta: float) -> Array:
    """Return RoPE whose pairs are neighbours (0, 1), (2, 3) ...; all first parts come first in the result."""
    return rotate_pairs(values[..., 0::2], values[..., 1::2], positions, theta)


def rotate_pairs(first: Array, second: Array, positions: Array, theta: float) -> Array:
    """Return pairs [T, ..., dim / 2] turned by position * theta^(-2j / dim); the frequencies in FP32, as stacks do."""
    pairs = first.shape[-1]
    exponents = np.arange(pairs, dtype=np.float32) / np.float32(pairs)
    speeds = (1.0 / np.float32(theta) ** exponents).astype(np.float64)
    angles = (positions[:, None] * speeds).reshape(len(positions), *([1] * (first.ndim - 2)), pairs)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def softmax(scores: Array) -> Array:
    """Return the softmax of the rows; -inf gets 0."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def causal(queries: int, keys: int) -> Mask:
    """Return [queries, keys]: the last query sees all keys, each earlier one a key less."""
    visible: Mask = np.arange(keys)[None, :] <= np.arange(keys - queries, keys)[:, None]
    return visible
