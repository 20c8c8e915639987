"""The model's mathematics in float64 NumPy, independent of every stack: what the margins of a right one must be.

Written from the published architecture (multi-head latent attention, DeepSeek sparse attention with a ReLU indexer,
sigmoid routing with a selection bias), with the two interleaved RoPEs that GLM-5's configuration asks for. Each step
that stacks get wrong is a method of its own, so that a test can plant a fault by overriding one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from builder.verify.tiny.operations import Mask, causal, product, rotate_interleaved, softmax

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.verify.tiny.floats import Array

LATENT_NORM_EPS = 1e-6
INDEX_NORM_EPS = 1e-6
ROUTE_SUM_EPS = 1e-20

Indices = NDArray[np.int64]


class ModelConfig(BaseModel):
    """The part of config.json that the mathematics needs."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    num_hidden_layers: int
    first_k_dense_replace: int
    num_attention_heads: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    n_routed_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    index_topk: int
    index_head_dim: int
    index_n_heads: int
    rms_norm_eps: float
    rope_theta: float


class Cached(NamedTuple):
    """What a layer remembers of S positions: latent [S, kv_rank], RoPE key [S, rope_dim], index key [S, index_dim]."""

    latent: Array
    rope_key: Array
    index_key: Array


class Reference:
    """A decoder with a cache: `forward` takes the next tokens of one sequence and returns their logits."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Array]) -> None:
        self.config = config
        self.weights = weights
        self.start()

    def start(self) -> None:
        """Forget the sequence."""
        self.length = 0
        self.cache: dict[int, Cached] = {}

    def forward(self, tokens: Sequence[int]) -> Array:
        """Return the logits [len(tokens), vocab] after each of the next tokens."""
        positions = self.positions(len(tokens))
        hidden = self.weights["model.embed_tokens.weight"][np.asarray(tokens)]
        for layer in range(self.config.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            normed = self.norm(hidden, prefix + "input_layernorm.weight", self.config.rms_norm_eps)
            hidden = self.stored(hidden + self.attention(layer, normed, positions))
            normed = self.norm(hidden, prefix + "post_attention_layernorm.weight", self.config.rms_norm_eps)
            hidden = self.stored(hidden + self.mlp(layer, normed))
        self.length += len(tokens)
        return self.project(self.norm(hidden, "model.norm.weight", self.config.rms_norm_eps), "lm_head.weight")

    def positions(self, count: int) -> Array:
        """Return the positions of the next `count` tokens."""
        return np.arange(self.length, self.length + count, dtype=np.float64)

    def project(self, x: Array, name: str) -> Array:
        """Return the rows of x times a weight [n, k]."""
        return product(x, self.weights[name])

    def norm(self, values: Array, name: str, eps: float) -> Array:
        """Return the RMSNorm of the rows."""
        normed: Array = values / np.sqrt((values * values).mean(axis=-1, keepdims=True) + eps) * self.weights[name]
        return normed

    def stored(self, hidden: Array) -> Array:
        """Return the residual stream as it is stored between two blocks."""
        return hidden

    def theta(self) -> float:
        """Return the RoPE base."""
        return self.config.rope_theta

    def rotate_main(self, values: Array, positions: Array) -> Array:
        """Return RoPE of the attention's queries [T, heads, dim] or keys [S, dim]."""
        return rotate_interleaved(values, positions, self.theta())

    def rotate_index(self, values: Array, positions: Array) -> Array:
        """Return RoPE of the indexer's queries or keys."""
        return rotate_interleaved(values, positions, self.theta())

    def attention(self, layer: int, x: Array, positions: Array) -> Array:
        """Return the output [T, hidden] of a layer's attention for normed inputs [T, hidden]."""
        config, name = self.config, f"model.layers.{layer}.self_attn."
        asked = self.norm(self.project(x, name + "q_a_proj.weight"), name + "q_a_layernorm.weight", LATENT_NORM_EPS)
        known = self.remember(layer, self.cached(name, x, positions))
        selected = self.select(self.index_scores(name, x, asked, known.index_key, positions))
        query = self.project(asked, name + "q_b_proj.weight").reshape(len(x), config.num_attention_heads, -1)
        rotated = self.rotate_main(query[..., config.qk_nope_head_dim :], positions)
        mixed = self.heads(name, query[..., : config.qk_nope_head_dim], rotated, known, selected)
        return self.project(mixed, name + "o_proj.weight")

    def cached(self, name: str, x: Array, positions: Array) -> Cached:
        """Return what the new positions leave in the cache."""
        rank = self.config.kv_lora_rank
        both = self.project(x, name + "kv_a_proj_with_mqa.weight")
        latent = self.norm(both[:, :rank], name + "kv_a_layernorm.weight", LATENT_NORM_EPS)
        keys = self.project(x, name + "indexer.wk.weight")
        centred = keys - keys.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt(keys.var(axis=-1, keepdims=True) + INDEX_NORM_EPS)
        normed = scaled * self.weights[name + "indexer.k_norm.weight"] + self.weights[name + "indexer.k_norm.bias"]
        return Cached(
            latent=latent,
            rope_key=self.rotate_main(both[:, rank:], positions),
            index_key=self._index_rope(normed, positions),
        )

    def remember(self, layer: int, fresh: Cached) -> Cached:
        """Append the new positions to a layer's cache and return all of it."""
        old = self.cache.get(layer)
        if old is not None:
            fresh = Cached(*(np.concatenate(pair) for pair in zip(old, fresh, strict=True)))
        self.cache[layer] = fresh
        return fresh

    def index_scores(self, name: str, x: Array, asked: Array, keys: Array, positions: Array) -> Array:
        """Return the indexer's score [T, S] of every cached position; -inf for those in the future."""
        config = self.config
        query = self.project(asked, name + "indexer.wq_b.weight").reshape(len(x), config.index_n_heads, -1)
        query = self._index_rope(query, positions)
        votes = self.project(x, name + "indexer.weights_proj.weight") / math.sqrt(config.index_n_heads)
        scores = np.zeros((len(x), len(keys)))
        for head in range(config.index_n_heads):
            matches = product(query[:, head], keys) / math.sqrt(config.index_head_dim)
            scores += self.index_activation(matches) * votes[:, head : head + 1]
        return np.where(causal(len(x), len(keys)), scores, -np.inf)

    def index_activation(self, matches: Array) -> Array:
        """Return the ReLU of the index heads' products."""
        return np.maximum(matches, 0.0)

    def select(self, scores: Array) -> Mask:
        """Return which cached positions [T, S] each query may attend to: its `index_topk` best, none of the future."""
        allowed: Mask = np.isfinite(scores)
        if self.config.index_topk < scores.shape[1]:
            best = np.argsort(-scores, axis=1, kind="stable")[:, : self.config.index_topk]
            chosen = np.zeros_like(allowed)
            np.put_along_axis(chosen, best, values=True, axis=1)
            allowed &= chosen
        return allowed

    def heads(self, name: str, nope: Array, rotated: Array, known: Cached, selected: Mask) -> Array:
        """Return the heads' outputs [T, heads * value_dim]."""
        config, count = self.config, len(known.latent)
        key_value = self.project(known.latent, name + "kv_b_proj.weight").reshape(count, config.num_attention_heads, -1)
        outputs = []
        for head in range(config.num_attention_heads):
            key, value = np.split(key_value[:, head], [config.qk_nope_head_dim], axis=1)
            scores = (product(nope[:, head], key) + product(rotated[:, head], known.rope_key)) * self.attention_scale()
            shares = softmax(np.where(selected, scores, -np.inf))
            outputs.append(product(shares, np.ascontiguousarray(value.T)))
        return np.concatenate(outputs, axis=1)

    def attention_scale(self) -> float:
        """Return the factor of the attention scores."""
        return 1.0 / math.sqrt(self.config.qk_nope_head_dim + self.config.qk_rope_head_dim)

    def mlp(self, layer: int, x: Array) -> Array:
        """Return the output [T, hidden] of a layer's MLP, dense or routed."""
        prefix = f"model.layers.{layer}.mlp."
        if layer < self.config.first_k_dense_replace:
            return self.swiglu(prefix, x)
        chosen, shares = self.route(prefix, x)
        output = self.swiglu(prefix + "shared_experts.", x)
        for expert in np.unique(chosen):
            rows, places = np.nonzero(chosen == expert)
            output[rows] += shares[rows, places][:, None] * self.expert(prefix, int(expert), x[rows])
        return output

    def route(self, prefix: str, x: Array) -> tuple[Indices, Array]:
        """Return the chosen experts [T, k] and their weights: the bias chooses, the score without it counts."""
        scores = self.route_scores(self.project(x, prefix + "gate.weight"))
        biased = scores + self.selection_bias(prefix)
        chosen = np.argsort(-biased, axis=1, kind="stable")[:, : self.config.num_experts_per_tok]
        shares = np.take_along_axis(scores, chosen, axis=1)
        normalised = shares / (shares.sum(axis=1, keepdims=True) + ROUTE_SUM_EPS)
        return chosen, normalised * self.config.routed_scaling_factor

    def route_scores(self, logits: Array) -> Array:
        """Return the sigmoid of the router's logits."""
        return 1.0 / (1.0 + np.exp(-logits))

    def selection_bias(self, prefix: str) -> Array:
        """Return what is added to the scores for choosing only."""
        return self.weights[prefix + "gate.e_score_correction_bias"]

    def expert(self, prefix: str, expert: int, x: Array) -> Array:
        """Return the output of one routed expert."""
        return self.swiglu(f"{prefix}experts.{expert}.", x)

    def swiglu(self, prefix: str, x: Array) -> Array:
        """Return down(silu(gate(x)) * up(x))."""
        return self.project(self.inner(prefix, x), prefix + "down_proj.weight")

    def inner(self, prefix: str, x: Array) -> Array:
        """Return silu(gate(x)) * up(x)."""
        gate = self.project(x, prefix + "gate_proj.weight")
        return gate / (1.0 + np.exp(-gate)) * self.project(x, prefix + "up_proj.weight")

    def _index_rope(self, values: Array, positions: Array) -> Array:
        width = self.config.qk_rope_head_dim
        rotated = self.rotate_index(values[..., :width], positions)
        return np.concatenate([rotated, values[..., width:]], axis=-1)


def margins(logits: Array) -> Array:
    """Return how far the first place is before the second, for each row of logits."""
    top = np.sort(logits, axis=1)[:, -2:]
    return top[:, 1] - top[:, 0]
