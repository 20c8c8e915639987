"""Whether a GLM-5 checkpoint has every tensor that its configuration calls for: engines warn at most, and go on."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

NAMES_SHOWN = 8
ATTENTION = (
    *("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"),
    *("indexer.wq_b", "indexer.wk", "indexer.k_norm", "indexer.weights_proj"),
)
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
QUANTISED = ("weight_scale", "weight_scale_2", "input_scale")
_PREFIX_BYTES = 8


def compare_tensors(folder: Path) -> dict[str, Any]:
    """Return how many tensors a checkpoint has, and which it lacks."""
    config = json.loads((folder / "config.json").read_text())
    present = {name: entry["dtype"] for file in sorted(folder.glob("*.safetensors")) for name, entry in _header(file)}
    missing = sorted(set(expected_tensors(config, present)) - present.keys())
    return {"present": len(present), "missing": len(missing), "missing_names": missing[:NAMES_SHOWN]}


def expected_tensors(config: dict[str, Any], present: dict[str, str]) -> Iterator[str]:
    """Yield the names that the model code must find; a weight that is stored in bytes needs its three scales too."""
    yield from ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield from (f"{prefix}{norm}.weight" for norm in ("input_layernorm", "post_attention_layernorm"))
        yield from (f"{prefix}self_attn.{part}.weight" for part in ATTENTION)
        yield f"{prefix}self_attn.indexer.k_norm.bias"
        for module in _mlp(config, layer):
            weight = f"{prefix}mlp.{module}.weight"
            yield weight
            if present.get(weight) == "U8":
                yield from (f"{prefix}mlp.{module}.{scale}" for scale in QUANTISED)
        if layer >= config["first_k_dense_replace"]:
            yield f"{prefix}mlp.gate.e_score_correction_bias"


def _mlp(config: dict[str, Any], layer: int) -> Iterable[str]:
    if layer < config["first_k_dense_replace"]:
        return PROJECTIONS
    routed = (f"experts.{expert}.{part}" for expert in range(config["n_routed_experts"]) for part in PROJECTIONS)
    return ("gate", *routed, *(f"shared_experts.{part}" for part in PROJECTIONS))


def _header(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(_PREFIX_BYTES), "little")
        header = json.loads(opened.read(length))
    yield from ((name, entry) for name, entry in header.items() if name != "__metadata__")


def not_loaded(lines: Iterable[str]) -> list[str]:
    """Return the lines in which a loader says that a weight found no place, or a place no weight."""
    said = re.compile(
        r"(?i)parameter .* not found|not found in params|not initialized from|newly initialized|missing keys"
        r"|unexpected keys|unexpected weight|were not used when"
    )
    return [line for line in lines if said.search(line)][:NAMES_SHOWN]
