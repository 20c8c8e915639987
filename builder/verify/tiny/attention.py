"""Attention weights of one layer: multi-head latent attention that finds one position by RoPE offset or by content."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from builder.verify.tiny.rotation import Rotation

if TYPE_CHECKING:
    from builder.verify.tiny.config import Preset
    from builder.verify.tiny.floats import Array
    from builder.verify.tiny.residual import Residual
    from builder.verify.tiny.rope import Offset
    from builder.verify.tiny.splitmix import SplitMix64

QUERY_CONSTANT_SHARE = 2.0
VALUE_CONSTANT_SHARE = 1.0
KEY_PAIR = 6.0
CONTENT_NATS = 18.0
NEUTRAL = 2.0
VALUE_SCALE = 2.0

Weights = dict[str, "Array"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Where a layer's attention sits.

    `source` is the stage that it passes on (the layer before's MLP), `offset` how it looks back (None: by content),
    `rms` that of the hidden state, `gain` the weight of the input norm.
    """

    residual: Residual
    layer: int
    source: slice
    offset: Offset | None
    rms: float
    gain: Array

    @property
    def preset(self) -> Preset:
        """Sizes of the model."""
        return self.residual.preset

    @property
    def value_source(self) -> slice:
        """The stage whose code is stored in the cache: that passed on, or the token itself to be found by content."""
        return self.source if self.offset else self.residual.token_stage()

    def read(self, matrix: Array) -> Array:
        """Return the weight that applies `matrix` [n, hidden] to the plain hidden state, the input norm undone."""
        return self.residual.reader(matrix * self.rms, self.gain)

    def constant_reader(self) -> float:
        """Return the factor that reads the constant coordinate as 1."""
        return 1.0 / self.residual.constant_amplitude


@dataclass(frozen=True, kw_only=True, slots=True)
class Latent:
    """A low-rank latent after its RMSNorm: [code | constant], rotated; `code` and `constant` are their values there."""

    rotation: Rotation
    gain: Array
    code: float
    constant: float

    @classmethod
    def drawn(cls, rank: int, code_size: int, constant_share: float, stream: SplitMix64) -> Latent:
        """Draw the basis of a latent whose constant is `constant_share` code lengths long."""
        rotation, gain = Rotation.drawn(rank, stream), stream.gains(rank)
        scale = math.sqrt(rank / (code_size * (1.0 + constant_share**2)))
        constant = constant_share * math.sqrt(code_size) * scale
        return cls(rotation=rotation, gain=gain, code=scale, constant=constant)

    @property
    def rank(self) -> int:
        """Coordinates of the latent."""
        return len(self.gain)

    def reader(self, matrix: Array) -> Array:
        """Return the weight that applies `matrix` [n, rank] to the plain latent, its norm's gain undone."""
        return self.rotation.of_inputs(matrix) / self.gain


def attention_weights(site: Site, stream: SplitMix64) -> tuple[Weights, Latent]:
    """Return the weights of `self_attn` without the indexer, and the query latent that the indexer also reads."""
    preset, code_size = site.preset, site.residual.code_size
    query = Latent.drawn(preset.q_lora_rank, code_size, QUERY_CONSTANT_SHARE, stream)
    value = Latent.drawn(preset.kv_lora_rank, code_size, VALUE_CONSTANT_SHARE, stream)
    heads = [_head(site, query, value, head, stream) for head in range(preset.num_attention_heads)]
    weights = {
        "q_a_proj.weight": site.read(_down(site, site.source, QUERY_CONSTANT_SHARE, query)),
        "q_a_layernorm.weight": query.gain,
        "q_b_proj.weight": np.concatenate([head.query for head in heads]),
        "kv_a_proj_with_mqa.weight": site.read(
            np.concatenate([_down(site, site.value_source, VALUE_CONSTANT_SHARE, value), _key_pairs(site)])
        ),
        "kv_a_layernorm.weight": value.gain,
        "kv_b_proj.weight": np.concatenate([head.key_value for head in heads]),
        "o_proj.weight": site.residual.writer(np.concatenate([head.output for head in heads], axis=1)),
    }
    return weights, query


@dataclass(frozen=True, kw_only=True, slots=True)
class _Head:
    query: Array
    key_value: Array
    output: Array


def _down(site: Site, stage: slice, constant_share: float, latent: Latent) -> Array:
    """Return the projection [rank, hidden] to a latent: the code of `stage`, then the constant."""
    size = site.residual.code_size
    matrix = np.zeros((latent.rank, site.preset.hidden_size))
    matrix[:size, stage] = np.eye(size)
    matrix[size, site.residual.constant] = constant_share * site.residual.code_length * site.constant_reader()
    return latent.rotation.of_outputs(matrix)


def _key_pairs(site: Site) -> Array:
    """Return the projection [rope_dim, hidden] to the RoPE key: (KEY_PAIR, 0) in each pair, nothing for content."""
    matrix = np.zeros((site.preset.qk_rope_head_dim, site.preset.hidden_size))
    if site.offset:
        matrix[0::2, site.residual.constant] = KEY_PAIR * site.constant_reader()
    return matrix


def _head(site: Site, query: Latent, value: Latent, head: int, stream: SplitMix64) -> _Head:
    preset = site.preset
    basis = Rotation.drawn(preset.qk_nope_head_dim, stream)
    plain_query, plain_key = _offset_nope(site, query, value) if site.offset else _content_nope(site, query, value)
    carried, written = _value_path(site, value, head, stream)
    return _Head(
        query=np.concatenate([query.reader(basis.of_outputs(plain_query)), query.reader(_rope_query(site, query))]),
        key_value=np.concatenate([value.reader(basis.of_outputs(plain_key)), carried]),
        output=written,
    )


def _content_nope(site: Site, query: Latent, value: Latent) -> tuple[Array, Array]:
    """Return position-free query and key parts whose product is CONTENT_NATS on equal codes and 0 on different ones."""
    size, width = site.residual.code_size, site.preset.qk_nope_head_dim
    scale = math.sqrt(CONTENT_NATS * _softmax_scale(site.preset) / size)
    asks, answers = np.zeros((width, query.rank)), np.zeros((width, value.rank))
    asks[:size, :size] = np.eye(size) / query.code * scale
    answers[:size, :size] = np.eye(size) / value.code * scale
    return asks, answers


def _offset_nope(site: Site, query: Latent, value: Latent) -> tuple[Array, Array]:
    """Return position-free parts that carry data in orthogonal subspaces: a right product is 0, a wrong one is not."""
    width = site.preset.qk_nope_head_dim
    half = min(site.residual.code_size, width) // 2
    asks, answers = np.zeros((width, query.rank)), np.zeros((width, value.rank))
    asks[:half, :half] = np.eye(half) * NEUTRAL
    answers[half : 2 * half, :half] = np.eye(half) * NEUTRAL
    return asks, answers


def _rope_query(site: Site, query: Latent) -> Array:
    """Return the RoPE query [rope_dim, rank], read from the latent's constant; 0 where the layer looks by content."""
    matrix = np.zeros((site.preset.qk_rope_head_dim, query.rank))
    if site.offset:
        scale = _softmax_scale(site.preset) / KEY_PAIR / query.constant
        matrix[:, site.residual.code_size] = site.offset.query() * scale
    return matrix


def _value_path(site: Site, value: Latent, head: int, stream: SplitMix64) -> tuple[Array, Array]:
    """Return a head's value projection and its columns of `o_proj`: each head carries its own part of the code."""
    preset = site.preset
    share = site.residual.code_size // preset.num_attention_heads
    first = head * share
    basis = Rotation.drawn(preset.v_head_dim, stream)
    carried = np.zeros((preset.v_head_dim, value.rank))
    carried[:share, first : first + share] = np.eye(share) / value.code * VALUE_SCALE
    written = np.zeros((preset.hidden_size, preset.v_head_dim))
    begin = site.residual.attention_stage(site.layer).start + first
    written[begin : begin + share, :share] = np.eye(share) / VALUE_SCALE
    return value.reader(basis.of_outputs(carried)), basis.of_inputs(written)


def _softmax_scale(preset: Preset) -> float:
    """Return what the model divides attention scores by: the root of the whole head dimension."""
    return math.sqrt(preset.qk_nope_head_dim + preset.qk_rope_head_dim)
