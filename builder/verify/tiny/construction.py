"""Preset -> weights in float64 and the integer program that they compute; closed form, nothing is trained.

    next token = t3[t2[t1[t0[token 85 positions back]]]]            (the preset `small`: 61 + 19 + 5 = 85)

Layers 0, 1 and 3 look back by a RoPE offset, layer 2 finds a token by its content, and each layer's MLP applies one
table. Everything that a stack may get wrong carries part of the answer: the indexer, the biased routing, the shared
expert, the 4-bit experts, both RoPE parts, every norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.verify.tiny.attention import Site, attention_weights
from builder.verify.tiny.indexer import indexer_weights
from builder.verify.tiny.mlp import MlpSite, dense_weights, routed_weights
from builder.verify.tiny.program import Program
from builder.verify.tiny.residual import Residual
from builder.verify.tiny.rope import Offset
from builder.verify.tiny.splitmix import SplitMix64

if TYPE_CHECKING:
    from builder.verify.tiny.attention import Weights
    from builder.verify.tiny.config import Preset


@dataclass(frozen=True, kw_only=True, slots=True)
class Construction:
    """The weights under their names in the checkpoint, unquantised, and the program that they compute."""

    weights: Weights
    program: Program


def construct(preset: Preset) -> Construction:
    """Return the model of a preset; the same numbers on every machine."""
    stream = SplitMix64(preset.seed)
    residual = Residual.drawn(preset, stream)
    weights = {"model.embed_tokens.weight": residual.embedding()}
    tables = []
    for layer in range(preset.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        layer_weights, table = _layer(residual, layer, stream)
        weights |= {prefix + name: values for name, values in layer_weights.items()}
        tables.append(table)
    weights["model.norm.weight"] = stream.gains(preset.hidden_size)
    weights["lm_head.weight"] = residual.head(weights["model.norm.weight"], _runner_up(preset, stream))
    return Construction(weights=weights, program=Program(lag=preset.lag, tables=tuple(tables)))


def _layer(residual: Residual, layer: int, stream: SplitMix64) -> tuple[Weights, tuple[int, ...]]:
    preset = residual.preset
    offset = _offset(preset, layer)
    site = Site(
        residual=residual,
        layer=layer,
        source=residual.mlp_stage(layer - 1),
        offset=offset,
        rms=residual.rms(2 * layer),
        gain=stream.gains(preset.hidden_size),
    )
    attention, query = attention_weights(site, stream)
    mlp_site = MlpSite(
        residual=residual,
        layer=layer,
        rms=residual.rms(2 * layer + 1),
        gain=stream.gains(preset.hidden_size),
        table=(*stream.permutation(preset.usable_tokens), preset.usable_tokens),
        strength=offset.mass if offset else 1.0,
    )
    mlp = dense_weights(mlp_site) if layer < preset.first_k_dense_replace else routed_weights(mlp_site, stream)
    weights = {"input_layernorm.weight": site.gain, "post_attention_layernorm.weight": mlp_site.gain}
    weights |= {f"self_attn.{name}": values for name, values in (attention | indexer_weights(site, query)).items()}
    weights |= {f"mlp.{name}": values for name, values in mlp.items()}
    return weights, tuple(mlp_site.table)


def _offset(preset: Preset, layer: int) -> Offset | None:
    """Return how a layer looks back; the last one is soft, so that the scale of its attention shows in the margin."""
    distance = preset.offsets[layer]
    if distance is None:
        return None
    sharp = Offset.sharp(distance, preset.qk_rope_head_dim)
    return sharp.softened() if layer == preset.num_hidden_layers - 1 else sharp


def _runner_up(preset: Preset, stream: SplitMix64) -> list[int]:
    """Return for each token another one, in one cycle over all usable tokens; the unused token is its own."""
    cycle = stream.permutation(preset.usable_tokens)
    other = [0] * preset.usable_tokens + [preset.usable_tokens]
    for place, token in enumerate(cycle):
        other[token] = cycle[(place + 1) % len(cycle)]
    return other
