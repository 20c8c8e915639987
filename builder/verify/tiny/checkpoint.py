"""Construction -> the files of a ModelOpt NVFP4 checkpoint, and back to float64 weights.

As in NVIDIA's GLM-5 checkpoints only the routed experts are 4 bits wide: `weight` u8 [N, K/2], `weight_scale` E4M3
[N, K/16], `weight_scale_2` and `input_scale` FP32 scalars. All else stays bfloat16.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from builder.document import pretty_json
from builder.verify.tiny.config import Preset, model_config
from builder.verify.tiny.nvfp4 import FULL_RANGE, Quantised, dequantise, power_of_two_above, quantise, tensor_scale_for
from builder.verify.tiny.program import CALIBRATION_SEED, CALIBRATION_TOKENS, drawn_prompt
from builder.verify.tiny.reference import ModelConfig, Reference
from builder.verify.tiny.safetensors import F8_E4M3, Tensor, read_safetensors, write_safetensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from builder.verify.tiny.floats import Array

PRODUCER = {"name": "modelopt", "version": "0.39.0"}
MODEL_FILE, CONFIG_FILE = "model.safetensors", "config.json"
SCALARS = ("weight_scale", "weight_scale_2", "input_scale")
_EXPERT = re.compile(r"(?P<expert>.*\.mlp\.experts\.\d+)\.(?P<projection>gate|up|down)_proj\.weight")
_FP32 = "e_score_correction_bias"


def checkpoint_files(preset: Preset, weights: Mapping[str, Array]) -> dict[str, bytes]:
    """Return the files of the checkpoint by name."""
    rounded = {name: _plain(name, values).values() for name, values in weights.items()}
    tensors = _tensors(rounded, _input_scales(preset, model_config(preset), rounded))
    return {**describing_files(preset), MODEL_FILE: write_safetensors(tensors)}


def describing_files(preset: Preset) -> dict[str, bytes]:
    """Return the files that say what the checkpoint is, by name: all but the weights."""
    excluded = excluded_modules(preset)
    return {
        CONFIG_FILE: pretty_json(model_config(preset) | {"quantization_config": _quantization_config(excluded)}),
        "generation_config.json": pretty_json({"do_sample": False, "eos_token_id": None}),
        "hf_quant_config.json": pretty_json(_hf_quant_config(excluded)),
    }


def read_config(files: Mapping[str, bytes]) -> ModelConfig:
    """Return what the mathematics needs of config.json."""
    return ModelConfig.model_validate(json.loads(files[CONFIG_FILE]))


def read_weights(files: Mapping[str, bytes], decode: Callable[[Quantised], Array] = dequantise) -> dict[str, Array]:
    """Return all weights in float64; `decode` says what an NVFP4 weight is worth."""
    tensors = read_safetensors(files[MODEL_FILE])
    weights = {}
    for name, tensor in tensors.items():
        if name.rpartition(".")[2] in SCALARS:
            continue
        scales = tensors.get(f"{name}_scale")
        weights[name] = tensor.values() if scales is None else decode(_quantised(tensors, name, scales))
    return weights


def excluded_modules(preset: Preset) -> list[str]:
    """Return the modules that are not quantised, as globs: everything but the routed experts."""
    dense = range(preset.first_k_dense_replace)
    sparse = range(preset.first_k_dense_replace, preset.num_hidden_layers)
    return [
        "lm_head",
        "model.embed_tokens",
        *(f"model.layers.{layer}.self_attn*" for layer in range(preset.num_hidden_layers)),
        *(f"model.layers.{layer}.mlp.{part}_proj" for layer in dense for part in ("gate", "up", "down")),
        *(f"model.layers.{layer}.mlp.{part}" for layer in sparse for part in ("gate", "shared_experts*")),
    ]


def _plain(name: str, values: Array) -> Tensor:
    return Tensor.f32(values) if name.endswith(_FP32) else Tensor.bf16(values)


def _tensors(weights: Mapping[str, Array], input_scales: Mapping[str, float]) -> dict[str, Tensor]:
    largest = _largest(weights)
    tensors: dict[str, Tensor] = {}
    for name, values in weights.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            tensors[name] = _plain(name, values)
            continue
        packed = quantise(values, tensor_scale_for(largest[_scale_group(match)]))
        tensors[name] = Tensor.octets(packed.packed)
        tensors[f"{name}_scale"] = Tensor.octets(packed.scales, F8_E4M3)
        tensors[f"{name}_scale_2"] = Tensor.f32(np.array(packed.tensor_scale))
        input_scale = input_scales[match["projection"]]
        tensors[name.removesuffix("weight") + "input_scale"] = Tensor.f32(np.array(input_scale))
    return tensors


def _largest(weights: Mapping[str, Array]) -> dict[tuple[str, str], float]:
    """Return the largest weight of each group of projections that share a weight_scale_2."""
    largest: dict[tuple[str, str], float] = {}
    for name, values in weights.items():
        match = _EXPERT.fullmatch(name)
        if match is not None:
            group = _scale_group(match)
            largest[group] = max(largest.get(group, 0.0), float(np.abs(values).max()))
    return largest


def _scale_group(match: re.Match[str]) -> tuple[str, str]:
    """Return gate and up of an expert as one group: serving engines fuse both and keep one weight_scale_2."""
    return match["expert"], "down" if match["projection"] == "down" else "gate and up"


def _input_scales(preset: Preset, config: dict[str, Any], weights: Mapping[str, Array]) -> dict[str, float]:
    """Return a static activation scale for each projection, calibrated on a prompt of its own.

    A power of two that just holds the largest activation seen in any expert; a smaller one would clip, and a right
    stack that computes with 4-bit activations would look wrong.
    """
    calibration = Calibration(ModelConfig.model_validate(config), weights)
    calibration.forward(drawn_prompt(preset, CALIBRATION_TOKENS, CALIBRATION_SEED))
    outer = power_of_two_above(calibration.largest_input / FULL_RANGE)
    inner = power_of_two_above(calibration.largest_inner / FULL_RANGE)
    return {"gate": outer, "up": outer, "down": inner}


class Calibration(Reference):
    """The reference, noting the largest inputs of the routed experts' projections."""

    largest_input = 0.0
    largest_inner = 0.0

    def inner(self, prefix: str, x: Array) -> Array:
        """Return the inner activations, and note the largest of them and of their inputs."""
        result = super().inner(prefix, x)
        if ".experts." in prefix:
            self.largest_input = max(self.largest_input, float(np.abs(x).max()))
            self.largest_inner = max(self.largest_inner, float(np.abs(result).max()))
        return result


def _quantised(tensors: Mapping[str, Tensor], name: str, scales: Tensor) -> Quantised:
    tensor_scale = float(tensors[f"{name}_scale_2"].values())
    return Quantised(packed=tensors[name].raw(), scales=scales.raw(), tensor_scale=tensor_scale)


def _hf_quant_config(excluded: list[str]) -> dict[str, Any]:
    """Return hf_quant_config.json as ModelOpt's exporter writes it; the FP8 cache has no scales, so they are 1."""
    return {
        "producer": PRODUCER,
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": "FP8",
            "group_size": 16,
            "exclude_modules": excluded,
        },
    }


def _quantization_config(excluded: list[str]) -> dict[str, Any]:
    four_bits = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    return {
        "config_groups": {
            "group_0": {"input_activations": four_bits, "weights": four_bits, "targets": ["Linear"]},
        },
        "ignore": excluded,
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        "quant_algo": "NVFP4",
        "producer": PRODUCER,
        "quant_method": "modelopt",
    }
