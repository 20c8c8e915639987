"""Faults planted into the float64 reference are caught by the oracle; honest differences of a right stack pass."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest

from builder.verify.oracle import EXACT, judge_answer
from builder.verify.tiny.checkpoint import read_weights
from builder.verify.tiny.floats import Array, bfloat16_bits, bfloat16_values, e4m3_octets, e4m3_values
from builder.verify.tiny.nvfp4 import GROUP, Quantised, dequantise, unpack
from builder.verify.tiny.operations import rotate_pairs, softmax
from builder.verify.tiny.reference import Cached, Indices, ModelConfig, Reference
from tests.tiny_glm5 import judged, observe, small

if TYPE_CHECKING:
    from collections.abc import Callable


def planted(kind: type[Reference]) -> Reference:
    return kind(small().config, small().weights)


def half_split(values: Array, positions: Array, theta: float) -> Array:
    first, second = np.split(values, 2, axis=-1)
    return rotate_pairs(first, second, positions, theta)


class OtherTheta(Reference):
    def theta(self) -> float:
        return 10_000.0


class MainHalfSplit(Reference):
    def rotate_main(self, values: Array, positions: Array) -> Array:
        return half_split(values, positions, self.theta())


class IndexHalfSplit(Reference):
    """Transformers 5.11 and 5.12."""

    def rotate_index(self, values: Array, positions: Array) -> Array:
        return half_split(values, positions, self.theta())


class BothHalfSplit(MainHalfSplit, IndexHalfSplit):
    """Transformers 5.4 to 5.10."""


class BothHalfSplitWithoutRelu(BothHalfSplit):
    """Transformers 5.2 and 5.3."""

    def index_activation(self, matches: Array) -> Array:
        return matches


class IndexWithoutRelu(Reference):
    def index_activation(self, matches: Array) -> Array:
        return matches


class SharperAttention(Reference):
    def attention_scale(self) -> float:
        return super().attention_scale() * 1.3


class SelectionBiasDropped(Reference):
    def selection_bias(self, prefix: str) -> Array:
        return np.zeros_like(super().selection_bias(prefix))


class SoftmaxRouting(Reference):
    def route_scores(self, logits: Array) -> Array:
        return softmax(logits)


class ScaledTwice(Reference):
    """SGLang 0.5.13 to 0.5.16, where NVFP4 experts run through Marlin."""

    def route(self, prefix: str, x: Array) -> tuple[Indices, Array]:
        chosen, shares = super().route(prefix, x)
        return chosen, shares * self.config.routed_scaling_factor


class NextExpert(Reference):
    def expert(self, prefix: str, expert: int, x: Array) -> Array:
        return super().expert(prefix, (expert + 1) % self.config.n_routed_experts, x)


class GateAndUpSwapped(Reference):
    def inner(self, prefix: str, x: Array) -> Array:
        if ".experts." not in prefix:
            return super().inner(prefix, x)
        gate = self.project(x, prefix + "up_proj.weight")
        return gate / (1.0 + np.exp(-gate)) * self.project(x, prefix + "gate_proj.weight")


class SharedExpertDropped(Reference):
    def swiglu(self, prefix: str, x: Array) -> Array:
        return super().swiglu(prefix, x) * (0.0 if "shared_experts" in prefix else 1.0)


class LastSlotDropped(Reference):
    """Each step overwrites the slot of the step before."""

    def remember(self, layer: int, fresh: Cached) -> Cached:
        if layer in self.cache:
            self.cache[layer] = Cached(*(part[:-1] for part in self.cache[layer]))
        return super().remember(layer, fresh)


class PositionsOneAhead(Reference):
    """Decoded tokens get the position after their own."""

    def positions(self, count: int) -> Array:
        return super().positions(count) + (1.0 if self.length else 0.0)


FAULTS = [
    OtherTheta,
    MainHalfSplit,
    IndexHalfSplit,
    BothHalfSplit,
    BothHalfSplitWithoutRelu,
    IndexWithoutRelu,
    SharperAttention,
    SelectionBiasDropped,
    SoftmaxRouting,
    NextExpert,
    GateAndUpSwapped,
    SharedExpertDropped,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_of_the_model_code_is_caught(fault: type[Reference]) -> None:
    assert judged(planted(fault)).cause is not None


@pytest.mark.parametrize("fault", [LastSlotDropped, PositionsOneAhead], ids=lambda fault: fault.__name__)
def test_a_planted_fault_of_the_cache_is_caught(fault: type[Reference]) -> None:
    assert "tokens are wrong" in str(judged(planted(fault), stepwise=True).cause)


def nibbles_swapped(weight: Quantised) -> Array:
    swapped = (weight.packed >> 4) | ((weight.packed & 15) << 4)
    return dequantise(dataclasses.replace(weight, packed=swapped.astype(np.uint8)))


def scale_read_as_exponent(weight: Quantised) -> Array:
    scales: Array = np.exp2(weight.scales.astype(np.float64) - 127.0)
    return unpack(weight.packed) * np.repeat(scales, GROUP, axis=1) * weight.tensor_scale


def scales_of_the_block_before(weight: Quantised) -> Array:
    return dequantise(dataclasses.replace(weight, scales=np.roll(weight.scales, 1, axis=1)))


def tensor_scale_ignored(weight: Quantised) -> Array:
    return dequantise(dataclasses.replace(weight, tensor_scale=1.0))


@pytest.mark.parametrize(
    "decode", [nibbles_swapped, scale_read_as_exponent, scales_of_the_block_before, tensor_scale_ignored]
)
def test_nvfp4_weights_read_wrongly_are_caught(decode: Callable[[Quantised], Array]) -> None:
    reference = Reference(small().config, read_weights(small().files, decode))
    assert judged(reference).cause is not None


@pytest.mark.parametrize(
    "changed",
    [{"routed_scaling_factor": 1.0}, {"num_experts_per_tok": 1}, {"rope_theta": 8_000_000.0}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_configuration_read_wrongly_is_caught(changed: dict[str, float]) -> None:
    config = ModelConfig.model_validate(small().config.model_dump() | changed)
    assert judged(Reference(config, small().weights)).cause is not None


def test_a_fault_that_leaves_the_tokens_right_shows_in_the_margin() -> None:
    judgement = judged(planted(SharperAttention))
    assert judgement.figures["tokens_right"] == judgement.figures["tokens"] == 96
    assert "mean margin" in str(judgement.cause)


def test_a_scale_applied_twice_widens_the_margins_and_leaves_all_tokens_but_one_right() -> None:
    """The kernel-sized model, whose tokens are all right then, is in docs/evidence/h200/sglang-0.5.14.txt."""
    judgement = judged(planted(ScaledTwice))
    assert (judgement.figures["tokens_right"], judgement.figures["tokens"]) == (95, 96)
    assert float(judgement.figures["mean_margin_ratio"]) == pytest.approx(1.264, abs=0.001)
    assert str(judgement.cause).startswith("1 of 96 tokens are wrong")


class Bfloat16Residual(Reference):
    def stored(self, hidden: Array) -> Array:
        return bfloat16_values(bfloat16_bits(hidden))


class Fp8Latent(Reference):
    """The cache holds FP8 latents with a scale for each position."""

    def cached(self, name: str, x: Array, positions: Array) -> Cached:
        fresh = super().cached(name, x, positions)
        scale = np.abs(fresh.latent).max(axis=-1, keepdims=True) / 448.0
        rounded = e4m3_values(e4m3_octets(np.abs(fresh.latent) / scale)) * scale
        return fresh._replace(latent=np.sign(fresh.latent) * rounded)


class ServingNormEps(Reference):
    """Serving engines take the model's epsilon for the norms of the latents too."""

    def norm(self, values: Array, name: str, eps: float) -> Array:
        return super().norm(values, name, max(eps, self.config.rms_norm_eps))


class ShiftedPositions(Reference):
    """RoPE sees distances only, so that all positions may start anywhere."""

    def positions(self, count: int) -> Array:
        return super().positions(count) + 1.0


class ThetaTenPercentOff(Reference):
    def theta(self) -> float:
        return super().theta() * 1.1


class LargeNormEps(Reference):
    def norm(self, values: Array, name: str, eps: float) -> Array:
        return super().norm(values, name, max(eps, 1e-2))


def quarter_of_top_k(config: ModelConfig, weights: dict[str, Array]) -> Reference:
    return Reference(config.model_copy(update={"index_topk": config.index_topk // 4}), weights)


@pytest.mark.parametrize(
    "fault", [ThetaTenPercentOff, LargeNormEps, quarter_of_top_k], ids=lambda fault: fault.__name__
)
def test_a_small_fault_is_outside_the_band_of_float32_on_the_cpu(
    fault: Callable[[ModelConfig, dict[str, Array]], Reference],
) -> None:
    seen = observe(fault(small().config, small().weights))
    assert judge_answer(small().expected, seen, EXACT).cause is not None
    assert judge_answer(small().expected, observe(planted(Reference)), EXACT).cause is None


@pytest.mark.parametrize(
    "variant", [Bfloat16Residual, Fp8Latent, ServingNormEps, ShiftedPositions], ids=lambda variant: variant.__name__
)
def test_an_honest_difference_passes(variant: type[Reference]) -> None:
    seen = observe(planted(variant))
    assert judge_answer(small().expected, seen).cause is None
    assert seen.margins != observe(planted(Reference)).margins


def test_the_reference_itself_has_the_golden_margins_stepwise_and_at_once() -> None:
    stepwise, at_once = (observe(planted(Reference), stepwise=flag) for flag in (True, False))
    assert stepwise.tokens == at_once.tokens == small().expected.tokens
    assert np.array(stepwise.margins, float) == pytest.approx(np.array(at_once.margins, float), abs=1e-9)
