"""MLP weights: SwiGLU as a lookup table from the attended token to the next one, dense or spread over experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from builder.verify.tiny.config import ROUTED_SCALING_FACTOR
from builder.verify.tiny.floats import sigmoid, silu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.verify.tiny.attention import Weights
    from builder.verify.tiny.config import Preset
    from builder.verify.tiny.floats import Array
    from builder.verify.tiny.residual import Residual
    from builder.verify.tiny.splitmix import SplitMix64

GATE_GAIN = 16.0
GATE_THRESHOLD = 0.55

BIASED_LOGIT = 0.625
PLAIN_LOGIT = 2.0
DECOY_LOGIT = 1.25
IDLE_LOGIT = -2.0
SELECTION_BIAS = 0.375

BIASED_PARTS = 9
PLAIN_PARTS = 3
PARTS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class MlpSite:
    """Where a layer's MLP sits: it reads the code that the layer's attention left, and writes its own stage.

    `rms` is that of the hidden state, `gain` the norm's weight, `table` the layer's permutation of tokens, `strength`
    the share of the attention that the sought position got.
    """

    residual: Residual
    layer: int
    rms: float
    gain: Array
    table: Sequence[int]
    strength: float

    @property
    def preset(self) -> Preset:
        """Sizes of the model."""
        return self.residual.preset


def dense_weights(site: MlpSite) -> Weights:
    """Return the weights of a dense layer's `mlp`."""
    everywhere = np.ones(site.residual.code_size)
    return lookup_weights(site, site.preset.intermediate_size, site.table, everywhere)


def lookup_weights(site: MlpSite, width: int, table: Sequence[int], mask: Array) -> Weights:
    """Return a SwiGLU of `width` units that turns the code of t into `mask` times the code of `table[t]`.

    Unit u answers to token u modulo the vocabulary. Its gate is open only for a match above GATE_THRESHOLD, its up
    projection is the match itself; so swapping both, or reading either in another scale, changes the amplitude.
    """
    residual, vocabulary = site.residual, site.preset.vocab_size
    tokens = np.arange(width // vocabulary * vocabulary) % vocabulary
    units = slice(0, len(tokens))
    match = residual.codes[tokens] / residual.code_size * site.rms
    stage = residual.attention_stage(site.layer)
    gate, up = np.zeros((width, site.preset.hidden_size)), np.zeros((width, site.preset.hidden_size))
    down = np.zeros((site.preset.hidden_size, width))
    gate[units, stage] = GATE_GAIN * match
    gate[units, residual.constant] = -GATE_GAIN * GATE_THRESHOLD / residual.constant_amplitude * site.rms
    up[units, stage] = match
    amplitude = vocabulary / len(tokens) / unit_output(site.strength)
    down[residual.mlp_stage(site.layer), units] = (residual.codes[np.array(table)[tokens]] * mask * amplitude).T
    return {
        "gate_proj.weight": residual.reader(gate, site.gain),
        "up_proj.weight": residual.reader(up, site.gain),
        "down_proj.weight": residual.writer(down),
    }


def unit_output(strength: float) -> float:
    """Return silu(gate) * up of the unit whose token is matched with `strength`."""
    return silu(GATE_GAIN * (strength - GATE_THRESHOLD)) * strength


def routed_weights(site: MlpSite, stream: SplitMix64) -> Weights:
    """Return the weights of a sparse layer's `mlp`: the router, the experts, the shared expert.

    The first half of the experts is chosen only thanks to the selection bias, the second half by its logit alone. A
    chosen expert knows the right table, any other a wrong one. The halves and the shared expert write disjoint shares
    of the code's coordinates, so that a wrong routing weight, unlike a common factor, bends the code.
    """
    preset = site.preset
    logits = _router_logits(preset, stream)
    masks = _masks(site.residual.code_size, stream)
    router = np.zeros((preset.n_routed_experts, preset.hidden_size))
    codes = site.residual.codes
    router[:, site.residual.attention_stage(site.layer)] = (logits.T @ codes) / site.residual.code_size * site.rms
    weights = {
        "gate.weight": site.residual.reader(router, site.gain),
        "gate.e_score_correction_bias": np.where(_is_biased(preset), SELECTION_BIAS, 0.0),
    }
    for expert in range(preset.n_routed_experts):
        weights |= _prefixed(f"experts.{expert}.", _expert_weights(site, expert, logits[:, expert], masks))
    shared = lookup_weights(site, preset.moe_intermediate_size, site.table, masks.shared)
    return weights | _prefixed("shared_experts.", shared)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Masks:
    biased: Array
    plain: Array
    shared: Array


def _expert_weights(site: MlpSite, expert: int, logits: Array, masks: _Masks) -> Weights:
    preset = site.preset
    biased = bool(_is_biased(preset)[expert])
    chosen = logits == (BIASED_LOGIT if biased else PLAIN_LOGIT)
    usable = preset.usable_tokens
    wrong = [(site.table[token] + 1 + expert % (usable - 1)) % usable for token in range(usable)]
    table = [site.table[token] if chosen[token] else wrong[token] for token in range(usable)]
    mask = (masks.biased if biased else masks.plain) / _expert_share(biased=biased)
    return lookup_weights(site, preset.moe_intermediate_size, [*table, preset.vocab_size - 1], mask)


def _expert_share(*, biased: bool) -> float:
    """Return the sum of the routing weights of one half's chosen experts, normalised and scaled as the model does."""
    own = sigmoid(BIASED_LOGIT if biased else PLAIN_LOGIT)
    return own / (sigmoid(BIASED_LOGIT) + sigmoid(PLAIN_LOGIT)) * ROUTED_SCALING_FACTOR


def _router_logits(preset: Preset, stream: SplitMix64) -> Array:
    """Return the router's logits [vocab, experts], all multiples of 1/8: their sums are exact in any order."""
    half, each = preset.n_routed_experts // 2, preset.num_experts_per_tok // 2
    logits = np.full((preset.vocab_size, preset.n_routed_experts), IDLE_LOGIT)
    for token in range(preset.vocab_size):
        biased, plain = stream.permutation(half), stream.permutation(half)
        logits[token, biased[:each]] = BIASED_LOGIT
        logits[token, [half + expert for expert in plain[:each]]] = PLAIN_LOGIT
        logits[token, [half + expert for expert in plain[each : 2 * each]]] = DECOY_LOGIT
    return logits


def _is_biased(preset: Preset) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.arange(preset.n_routed_experts) < preset.n_routed_experts // 2


def _masks(code_size: int, stream: SplitMix64) -> _Masks:
    """Draw which coordinates of a code each of the three writers owns; their shares are unequal on purpose."""
    first = BIASED_PARTS * code_size // PARTS
    second = first + PLAIN_PARTS * code_size // PARTS
    place = np.array(stream.permutation(code_size))
    return _Masks(
        biased=(place < first).astype(np.float64),
        plain=((place >= first) & (place < second)).astype(np.float64),
        shared=(place >= second).astype(np.float64),
    )


def _prefixed(prefix: str, weights: Weights) -> Weights:
    return {prefix + name: values for name, values in weights.items()}
