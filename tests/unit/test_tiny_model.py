"""The constructed checkpoint: its bytes, its format, and that its weights compute the integer program."""

from __future__ import annotations

import hashlib
import json
import math
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np
import pytest

from builder.store import Store
from builder.verify.tiny import floats, rope
from builder.verify.tiny.checkpoint import Calibration, read_config, read_weights
from builder.verify.tiny.config import GPU, SMALL, Preset, model_config
from builder.verify.tiny.construction import construct
from builder.verify.tiny.model import tiny_model
from builder.verify.tiny.nvfp4 import FULL_RANGE
from builder.verify.tiny.program import CALIBRATION_SEED, CALIBRATION_TOKENS, Program, drawn_prompt, requests_of
from builder.verify.tiny.reference import Reference
from builder.verify.tiny.rope import Offset
from builder.verify.tiny.safetensors import read_safetensors
from tests.tiny_glm5 import small

if TYPE_CHECKING:
    from pathlib import Path

PINNED = {
    "config.json": "7715395216ee32ad60b557401d13cce79ea7e3bf4e84993a7ee2b64ce9aa6e76",
    "generation_config.json": "8586c0428ab1b71596b91533befd05e96f87ddbc6054ce883e0b79ce57f523da",
    "hf_quant_config.json": "85e53961783fd8ff432eecb2481d6477e7b4008f903cd49bebb8ca3a2566a1b8",
    "model.safetensors": "e731a0367bb5175d4a69c7953ec1ea9ac85a98287f888eb21b6d98be39add569",
}
LAST_BITS = 16


def test_the_files_have_the_same_bytes_everywhere() -> None:
    """Pinned; seen the same with NumPy 1.26, 2.0 and 2.4, five BLAS kernels, and with and without AVX."""
    assert {name: hashlib.sha256(data).hexdigest() for name, data in small().files.items()} == PINNED


def test_no_settled_value_lies_where_another_c_library_could_round_it_differently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[float] = []
    plain = floats.settled

    def recorded(value: float) -> float:
        seen.append(value)
        return plain(value)

    monkeypatch.setattr(floats, "settled", recorded)
    monkeypatch.setattr(rope, "settled", recorded)
    construct(SMALL)
    assert len(seen) > 100
    for value in seen:
        scaled = value * floats.GRID
        to_edge = abs(scaled - math.floor(scaled) - 0.5)
        assert to_edge > LAST_BITS * math.ulp(value) * floats.GRID


def test_the_input_scales_do_not_hang_on_a_last_bit() -> None:
    calibration = Calibration(small().config, small().weights)
    calibration.forward(drawn_prompt(SMALL, CALIBRATION_TOKENS, CALIBRATION_SEED))
    for largest in (calibration.largest_input, calibration.largest_inner):
        power = math.log2(largest / FULL_RANGE)
        assert abs(power - round(power)) > 1e-3


def test_every_settled_position_of_the_prompt_follows_the_program() -> None:
    model = small()
    prompt = model.request.prompt
    answers = Reference(model.config, model.weights).forward(prompt).argmax(axis=1)
    first = SMALL.lag + SMALL.usable_tokens
    right = [int(answers[at]) == model.made.program.next_token(prompt[: at + 1]) for at in range(first, len(prompt))]
    assert right == [True] * (len(prompt) - first)


def test_the_program_looks_back_and_applies_one_table_after_the_other() -> None:
    program = Program(lag=2, tables=((1, 2, 0), (2, 0, 1)))
    assert program.next_token([0, 1, 2]) == 0
    assert program.continuation([0, 1, 2], 3) == (0, 1, 2)
    shifted = Program(lag=2, tables=((1, 2, 0),))
    assert shifted.continuation([0, 1, 2], 4) == (1, 2, 0, 2)


def test_the_tables_are_permutations_that_differ() -> None:
    tables = small().made.program.tables
    assert [sorted(table) for table in tables] == [list(range(SMALL.vocab_size))] * 4
    assert len(set(tables)) == 4


def test_a_prompt_begins_with_every_usable_token() -> None:
    prompt = drawn_prompt(SMALL, 160)
    assert sorted(prompt[:31]) == list(range(31))
    assert (len(prompt), max(prompt)) == (160, 30)


@pytest.mark.parametrize("preset", [SMALL, GPU], ids=lambda preset: preset.name)
def test_the_second_request_shares_a_beginning_and_needs_other_answers(preset: Preset) -> None:
    first, second = requests_of(preset)
    assert first.prompt[: preset.shared_tokens] == second.prompt[: preset.shared_tokens]
    assert preset.usable_tokens <= preset.shared_tokens < preset.prompt_tokens - preset.lag
    read_by_answers = slice(preset.prompt_tokens - 1 - preset.lag, preset.prompt_tokens - 1)
    assert first.prompt[read_by_answers] != second.prompt[read_by_answers]


def test_decoding_goes_past_what_the_sparse_attention_may_look_at() -> None:
    for preset in (SMALL, GPU):
        assert preset.prompt_tokens > preset.index_topk
        assert max(offset or 0 for offset in preset.offsets) > preset.index_topk


def test_the_config_says_everything_in_every_spelling_that_stacks_read() -> None:
    config = json.loads(small().files["config.json"])
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 1_000_000.0
    assert config["mlp_layer_types"] == ["dense", "sparse", "sparse", "sparse"]
    assert config["first_k_dense_replace"] == 1
    assert (config["indexer_rope_interleave"], config["rope_interleave"]) == (True, True)
    assert (config["model_type"], config["architectures"]) == ("glm_moe_dsa", ["GlmMoeDsaForCausalLM"])


def test_only_the_routed_experts_have_four_bits() -> None:
    tensors = read_safetensors(small().files["model.safetensors"])
    packed = {name for name, tensor in tensors.items() if tensor.dtype == "U8"}
    assert packed == {
        f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
        for layer in (1, 2, 3)
        for expert in range(8)
        for part in ("gate", "up", "down")
    }


def test_a_quantised_weight_has_the_four_tensors_of_modelopt() -> None:
    tensors = read_safetensors(small().files["model.safetensors"])
    prefix = "model.layers.1.mlp.experts.0.gate_proj."
    seen = {name.removeprefix(prefix): (t.dtype, t.shape) for name, t in tensors.items() if name.startswith(prefix)}
    assert seen == {
        "weight": ("U8", (64, 256)),
        "weight_scale": ("F8_E4M3", (64, 32)),
        "weight_scale_2": ("F32", ()),
        "input_scale": ("F32", ()),
    }


def test_gate_and_up_share_a_tensor_scale_that_is_a_power_of_two() -> None:
    tensors = read_safetensors(small().files["model.safetensors"])
    for expert in range(8):
        prefix = f"model.layers.2.mlp.experts.{expert}."
        gate, up = (float(tensors[f"{prefix}{part}_proj.weight_scale_2"].values()) for part in ("gate", "up"))
        assert gate == up
        assert math.frexp(gate)[0] == 0.5


def test_dequantised_weights_are_exact_in_bfloat16() -> None:
    values = small().weights["model.layers.3.mlp.experts.5.down_proj.weight"]
    assert np.array_equal(floats.bfloat16_values(floats.bfloat16_bits(values)), values)


def test_both_quantisation_files_exclude_the_same_modules_and_those_only() -> None:
    hf_quant = json.loads(small().files["hf_quant_config.json"])["quantization"]
    config = json.loads(small().files["config.json"])["quantization_config"]
    assert hf_quant["exclude_modules"] == config["ignore"]
    assert (hf_quant["quant_algo"], hf_quant["group_size"], config["quant_method"]) == ("NVFP4", 16, "modelopt")
    tensors = read_safetensors(small().files["model.safetensors"])
    modules = {name.rpartition(".")[0]: tensor.dtype for name, tensor in tensors.items() if name.endswith(".weight")}
    linear = {name: dtype for name, dtype in modules.items() if "norm" not in name}
    excluded = {name for name in linear if any(fnmatchcase(name, glob) for glob in config["ignore"])}
    assert {name for name, dtype in linear.items() if dtype == "U8"} == set(linear) - excluded


def test_a_soft_offset_still_peaks_at_its_distance_and_knows_its_share() -> None:
    soft = Offset.sharp(5, 32).softened()
    scores = {distance: soft.score(distance) for distance in range(206)}
    assert max(scores, key=lambda distance: scores[distance]) == 5
    assert scores[5] - scores[6] == pytest.approx(3.0, abs=1e-6)
    weights = [math.exp(score - scores[5]) for score in scores.values()]
    assert 1.0 / sum(weights) == pytest.approx(soft.mass, rel=1e-6)


def test_the_gpu_preset_keeps_the_sizes_that_kernels_hard_code() -> None:
    config = model_config(GPU)
    sizes = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "index_head_dim", "index_topk")
    assert [config[name] for name in sizes] == [512, 64, 192, 256, 128, 2048]
    assert config["n_routed_experts"] >= 64
    assert config["hidden_size"] % 64 == config["moe_intermediate_size"] % 64 == 0


def test_the_model_is_made_once_and_read_from_the_store_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    made = tiny_model(SMALL, store)
    assert made.expected[0] == small().expected
    monkeypatch.setattr("builder.verify.tiny.model.construct", None)
    assert tiny_model(SMALL, store) == made
    files = {name: store.path(sha256).read_bytes() for name, sha256 in made.files.items()}
    assert read_weights(files).keys() == small().weights.keys()
    assert read_config(files) == small().config


def test_a_file_missing_from_the_store_is_made_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = tiny_model(SMALL, store)
    store.path(made.files["config.json"]).unlink()
    assert tiny_model(SMALL, store) == made
    assert store.has(made.files["config.json"])
