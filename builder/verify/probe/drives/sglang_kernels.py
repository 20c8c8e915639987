"""The kernel package of SGLang and what SGLang moved out of it, at the model's sizes: norm to NVFP4 experts."""

# ruff: noqa: PLC0415 - SGLang belongs to the stack under test
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from builder.verify.probe.drives.call import Call, by_name
from builder.verify.probe.drives.run_time import leave_out_cute_launches, leave_out_nvcc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKENS, BATCH, BLOCK = 128, 4, 16
# Where a function lives: the first of them that has it. NVFP4 left the kernel package after 0.3.21 and is compiled at
# run time since.
PLACES = ("sgl_kernel", "sglang.jit_kernel.nvfp4", "sglang.srt.layers.moe.cutlass_moe")


def calls(group: dict[str, Any]) -> Iterator[Call]:
    """Yield the calls at the sizes of the model, for those functions that this version has.

    `hidden`, `vocabulary`, `experts`, `per_token`, `rope`; `width` of an expert and `heads` are those of one rank;
    `deciding` are the names of those functions that the server can call.
    """
    import torch

    leave_out_nvcc()
    leave_out_cute_launches()
    known = {**_plain(group, torch), **_fp4(group, torch)}
    for name, arguments in known.items():
        function = _found(name)
        if function is not None:
            yield Call(name=f"kernel {name}", run=by_name(function, arguments), decides=name in group["deciding"])


def _found(name: str) -> Callable[..., Any] | None:
    for place in PLACES:
        try:
            return getattr(importlib.import_module(place), name)  # type: ignore[no-any-return]
        except (ModuleNotFoundError, AttributeError):
            continue
    return None


def _plain(group: dict[str, Any], torch: Any) -> dict[str, dict[str, Any]]:
    hidden, width, rope = group["hidden"], group["width"], group["rope"]
    chosen, experts, vocabulary = group["per_token"], group["experts"], group["vocabulary"]
    own, exact, whole, eight = torch.bfloat16, torch.float32, torch.int32, torch.float8_e4m3fn

    def filled(*size: int, dtype: Any = own) -> Any:
        return torch.zeros(*size, dtype=dtype, device="cuda")

    x, weight = filled(TOKENS, hidden), filled(hidden)
    routing = {
        "topk_weights": filled(TOKENS, chosen, dtype=exact),
        "topk_ids": filled(TOKENS, chosen, dtype=whole),
        "gating_output": filled(TOKENS, experts, dtype=exact),
        "correction_bias": filled(experts, dtype=exact),
        "renormalize": True,
    }
    fp8 = {
        "input": x,
        "output_q": filled(TOKENS, hidden, dtype=eight),
        "fp8_min": -448.0, "fp8_max": 448.0, "group_size": 128, "eps": 1e-10,
    }  # fmt: skip
    slots = TOKENS * chosen + experts * BLOCK
    chances = filled(BATCH, vocabulary, dtype=exact)
    return {
        "rmsnorm": {"input": x, "weight": weight},
        "fused_add_rmsnorm": {"input": x, "residual": x.clone(), "weight": weight},
        "silu_and_mul": {"input": filled(TOKENS, 2 * width)},
        "rotary_embedding": {
            "positions": filled(TOKENS, dtype=torch.int64),
            "query": filled(TOKENS, group["heads"] * rope), "key": filled(TOKENS, rope),
            "head_size": rope, "cos_sin_cache": filled(4096, rope), "is_neox": False,
        },
        "topk_sigmoid": routing,
        "topk_softmax": routing,
        "moe_align_block_size": {
            "topk_ids": routing["topk_ids"], "num_experts": experts + 1, "block_size": BLOCK,
            "sorted_token_ids": filled(slots, dtype=whole), "experts_ids": filled(slots // BLOCK, dtype=whole),
            "num_tokens_post_pad": filled(1, dtype=whole), "cumsum_buffer": filled(experts + 2, dtype=whole),
        },
        "moe_sum_reduce": {
            "input_tensor": filled(TOKENS, chosen, hidden), "output_tensor": x, "routed_scaling_factor": 2.5,
        },
        "sgl_per_token_quant_fp8": {**fp8, "output_s": filled(TOKENS, 1, dtype=exact)},
        "sgl_per_token_group_quant_8bit": {**fp8, "output_s": filled(TOKENS, hidden // 128, dtype=exact)},
        "top_k_renorm_prob": {"probs": chances, "top_k": 20},
        "top_p_renorm_prob": {"probs": chances, "top_p": 0.9},
        "top_k_top_p_sampling_from_probs": {"probs": chances, "top_k": 20, "top_p": 0.9},
        "min_p_sampling_from_probs": {"probs": chances, "min_p": 0.1},
    }  # fmt: skip


def _fp4(group: dict[str, Any], torch: Any) -> dict[str, dict[str, Any]]:
    """NVFP4: two values in a byte, one scale of E4M3 for 16 of them, in tiles of 128 rows by 4 scales."""
    hidden, width, experts, chosen = group["hidden"], group["width"], group["experts"], group["per_token"]

    def packed(*size: int) -> dict[str, Any]:
        rows, columns = size[-2], size[-1]
        tiled = (*size[:-2], -(-rows // 128) * 128, -(-columns // 64) * 4)
        return {
            "values": torch.zeros(*size[:-1], columns // 2, dtype=torch.uint8, device="cuda"),
            "scales": torch.zeros(*tiled, dtype=torch.float8_e4m3fn, device="cuda"),
        }

    x = torch.zeros(TOKENS, hidden, dtype=torch.bfloat16, device="cuda")
    a, b, first = packed(TOKENS, hidden), packed(width, hidden), packed(experts, 2 * width, hidden)
    second = packed(experts, hidden, width)
    one, each = (torch.ones(size, dtype=torch.float32, device="cuda") for size in ((1,), (experts,)))
    return {
        "scaled_fp4_quant": {"input": x, "input_global_scale": one},
        "cutlass_scaled_fp4_mm": {
            "a": a["values"], "b": b["values"], "block_scale_a": a["scales"], "block_scale_b": b["scales"],
            "alpha": one, "out_dtype": torch.bfloat16,
        },
        "cutlass_moe_fp4": {
            "a": x, "a1_gscale": each, "w1_fp4": first["values"], "w1_blockscale": first["scales"], "w1_alphas": each,
            "a2_gscale": each, "w2_fp4": second["values"], "w2_blockscale": second["scales"], "w2_alphas": each,
            "topk_weights": torch.ones(TOKENS, chosen, dtype=torch.float32, device="cuda"),
            "topk_ids": torch.zeros(TOKENS, chosen, dtype=torch.int32, device="cuda"),
            "params": _expert_parameters(group),
        },
    }  # fmt: skip


def _expert_parameters(group: dict[str, Any]) -> Any:
    """Return the sizes and offsets as SGLang's own class has them; None where there is no such class."""
    try:
        known = importlib.import_module("sglang.srt.layers.moe.cutlass_moe_params")
    except ModuleNotFoundError:
        return None
    return by_name(
        known.CutlassMoEParams,
        {
            "cutlass_moe_type": known.CutlassMoEType.BlockscaledFP4,
            "device": "cuda",
            "num_experts": group["experts"],
            "intermediate_size_per_partition": group["width"],
            "hidden_size": group["hidden"],
        },
    )()
