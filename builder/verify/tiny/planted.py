"""The reference with the known deviations of released model code planted: what such a release must compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from builder.verify.tiny.operations import rotate_pairs
from builder.verify.tiny.reference import Reference

if TYPE_CHECKING:
    from builder.verify.tiny.floats import Array


def rotate_half_split(values: Array, positions: Array, theta: float) -> Array:
    """Return RoPE whose pairs lie half the width apart: (0, n/2), (1, n/2 + 1) ..."""
    first, second = np.split(values, 2, axis=-1)
    return rotate_pairs(first, second, positions, theta)


class IndexHalfSplit(Reference):
    """The indexer's RoPE half-split: Transformers 5.11 and 5.12."""

    def rotate_index(self, values: Array, positions: Array) -> Array:
        """Return RoPE of the indexer's queries or keys, half-split."""
        return rotate_half_split(values, positions, self.theta())


class BothHalfSplit(IndexHalfSplit):
    """Both RoPEs half-split: Transformers 5.4 to 5.10."""

    def rotate_main(self, values: Array, positions: Array) -> Array:
        """Return RoPE of the attention's queries or keys, half-split."""
        return rotate_half_split(values, positions, self.theta())


class BothHalfSplitWithoutRelu(BothHalfSplit):
    """And no ReLU in the indexer: Transformers 5.2 and 5.3."""

    def index_activation(self, matches: Array) -> Array:
        """Return the index heads' products as they are."""
        return matches


FAMILIES: dict[str, type[Reference]] = {
    "index-half-split": IndexHalfSplit,
    "both-half-split": BothHalfSplit,
    "both-half-split-without-relu": BothHalfSplitWithoutRelu,
}
