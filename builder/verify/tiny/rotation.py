"""Orthogonal matrices from Hadamard blocks, applied by butterflies: every sum has one order, on every machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from builder.verify.tiny.floats import Array
    from builder.verify.tiny.splitmix import SplitMix64


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One square block: coordinates `start` to `start + size`; rows permuted by `order`, columns signed by `signs`."""

    start: int
    size: int
    signs: Array
    order: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rotation:
    """An orthogonal matrix Q, block-diagonal of randomised Hadamard matrices whose sizes are powers of two.

    It spreads a readable layout over all coordinates, so that a kernel that drops or swaps any of them is seen.
    """

    blocks: tuple[Block, ...]

    @classmethod
    def drawn(cls, size: int, stream: SplitMix64) -> Rotation:
        """Draw a rotation of `size` coordinates; the blocks are the powers of two that sum to `size`."""
        blocks, start = [], 0
        for bit in range(size.bit_length() - 1, -1, -1):
            if size >> bit & 1:
                width = 1 << bit
                signs = stream.signs(width)
                blocks.append(Block(start=start, size=width, signs=signs, order=tuple(stream.permutation(width))))
                start += width
        return cls(blocks=tuple(blocks))

    def of_inputs(self, matrix: Array) -> Array:
        """Return matrix @ Q^T: a consumer of plain coordinates [n, size] becomes one of rotated coordinates."""
        result = np.empty_like(matrix)
        for block in self.blocks:
            part = slice(block.start, block.start + block.size)
            spread = hadamard_transform(matrix[:, part] * block.signs)
            result[:, part] = spread[:, list(block.order)] / math.sqrt(block.size)
        return result

    def of_outputs(self, matrix: Array) -> Array:
        """Return Q @ matrix: a producer of plain coordinates [size, n] becomes one of rotated coordinates."""
        return np.ascontiguousarray(self.of_inputs(np.ascontiguousarray(matrix.T)).T)


def hadamard_transform(rows: Array) -> Array:
    """Return rows @ H for the Sylvester-Hadamard matrix H of the rows' length, a power of two."""
    count, size = rows.shape
    span = 1
    while span < size:
        pairs = rows.reshape(count, size // (2 * span), 2, span)
        upper, lower = pairs[:, :, 0], pairs[:, :, 1]
        rows = np.stack([upper + lower, upper - lower], axis=2).reshape(count, size)
        span *= 2
    return rows


def hadamard_matrix(size: int) -> Array:
    """Return the Sylvester-Hadamard matrix [size, size] of +1 and -1; `size` is a power of two."""
    return hadamard_transform(np.eye(size))
