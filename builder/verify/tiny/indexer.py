"""Weights of the sparse-attention indexer: it must keep the position that the attention looks for among its top k."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from builder.verify.tiny.attention import Latent, Site, Weights
    from builder.verify.tiny.floats import Array
    from builder.verify.tiny.rope import Offset

OFFSET_SCALE = 8.0
CONTENT_SCALE = 0.5
NEGATIVE_SCALE = 4.5
NEGATIVE_FRACTION = 4
KEY_ANGLE = -math.pi / 4


def indexer_weights(site: Site, query: Latent) -> Weights:
    """Return the weights of `self_attn.indexer`; its query comes from the attention's query latent."""
    keys, asks, votes = _offset(site, site.offset, query) if site.offset else _content(site, query)
    size = site.preset.index_head_dim
    return {
        "indexer.wq_b.weight": query.reader(asks.reshape(-1, query.rank)),
        "indexer.wk.weight": site.read(keys),
        "indexer.k_norm.weight": np.ones(size),
        "indexer.k_norm.bias": np.zeros(size),
        "indexer.weights_proj.weight": site.read(votes),
    }


def _content(site: Site, query: Latent) -> tuple[Array, Array, Array]:
    """Return keys that hold the token's code beside the RoPE part and queries that hold the code looked for."""
    preset, size = site.preset, site.residual.code_size
    begin = preset.qk_rope_head_dim
    keys = np.zeros((preset.index_head_dim, preset.hidden_size))
    keys[begin : begin + size, site.residual.token_stage()] = np.eye(size)
    asks = np.zeros((preset.index_n_heads, preset.index_head_dim, query.rank))
    asks[:, begin : begin + size, :size] = np.eye(size) / query.code * CONTENT_SCALE
    return keys, asks, _votes(site, negative=0)


def _offset(site: Site, offset: Offset, query: Latent) -> tuple[Array, Array, Array]:
    """Return an index that peaks at the offset, and some heads that only the ReLU keeps silent.

    Those heads vote against; their product with a key is 0 for even tokens and negative for odd ones. With the ReLU it
    is always 0; without it every odd token would win.
    """
    preset = site.preset
    negative = max(1, preset.index_n_heads // NEGATIVE_FRACTION)
    parity, constant = _signatures(preset.index_head_dim - preset.qk_rope_head_dim)
    begin, column = preset.qk_rope_head_dim, site.residual.code_size
    asks = np.zeros((preset.index_n_heads, preset.index_head_dim, query.rank))
    peak = offset.query(KEY_ANGLE) * (OFFSET_SCALE / math.fsum(offset.strengths))
    asks[:-negative, :begin, column] = peak / query.constant
    pull = NEGATIVE_SCALE * (preset.index_n_heads / negative) / np.count_nonzero(parity)
    asks[-negative:, begin:, column] = -(parity + constant) * pull / query.constant
    return _offset_keys(site, parity, constant), asks, _votes(site, negative=negative)


def _offset_keys(site: Site, parity: Array, constant: Array) -> Array:
    """Return keys [index_head_dim, hidden] of +1 and -1 in equal number, which the key's LayerNorm leaves alone."""
    preset, begin = site.preset, site.preset.qk_rope_head_dim
    keys = np.zeros((preset.index_head_dim, preset.hidden_size))
    keys[0:begin:2, site.residual.constant] = site.constant_reader()
    keys[1:begin:2, site.residual.constant] = -site.constant_reader()
    keys[begin:, site.residual.parity] = parity / site.residual.parity_amplitude
    keys[begin:, site.residual.constant] = constant * site.constant_reader()
    return keys


def _signatures(width: int) -> tuple[Array, Array]:
    """Return two vectors of alternating signs on disjoint halves: one carries the parity, one the constant."""
    half = width // 2
    alternating = np.tile([1.0, -1.0], half // 2)
    return np.concatenate([alternating, np.zeros(width - half)]), np.concatenate([np.zeros(half), alternating])


def _votes(site: Site, *, negative: int) -> Array:
    """Return `weights_proj` [heads, hidden]: every head counts 1, the last `negative` ones -1."""
    votes = np.zeros((site.preset.index_n_heads, site.preset.hidden_size))
    votes[:, site.residual.constant] = site.constant_reader()
    votes[site.preset.index_n_heads - negative :, site.residual.constant] *= -1.0
    return votes
