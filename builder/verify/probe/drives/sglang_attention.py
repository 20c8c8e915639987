"""SGLang's Triton attention: extend and decode with the KV cache in pages, at given head dimensions."""

# ruff: noqa: PLC0415 - SGLang belongs to the stack under test
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.verify.probe.drives.call import Call, by_name

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKENS, BATCH, SLOTS, SPLITS = 512, 2, 4096, 8


def calls(group: dict[str, Any]) -> Iterator[Call]:
    """Yield the calls for `shapes`: phase, head dimensions of query and value, heads, type of the KV cache, decides."""
    import torch
    from sglang.srt.layers.attention.triton_ops import decode_attention, extend_attention, prefill_attention

    functions = {
        "extend": extend_attention.extend_attention_fwd,
        "decode": decode_attention.decode_attention_fwd,
        "prefill": prefill_attention.context_attention_fwd,
    }
    for shape in group["shapes"]:
        call = by_name(functions[shape["phase"]], _arguments(shape, torch))
        yield Call(name=_name(shape), run=call, decides=shape["decides"])


def _name(shape: dict[str, Any]) -> str:
    kind = shape["kv"] if shape["kv"] == shape["activations"] else f"{shape['activations']}, KV {shape['kv']}"
    return f"{shape['phase']} at head dimension {shape['query']}/{shape['value']}, {kind}"


def _arguments(shape: dict[str, Any], torch: Any) -> dict[str, Any]:
    activations, cached = getattr(torch, shape["activations"]), getattr(torch, shape["kv"])
    query, value, heads, kv_heads = shape["query"], shape["value"], shape["heads"], shape["kv_heads"]
    rows = BATCH if shape["phase"] == "decode" else TOKENS

    def empty(*size: int, dtype: Any = activations) -> Any:
        return torch.empty(*size, dtype=dtype, device="cuda")

    def zeros(*size: int, dtype: Any = torch.int32) -> Any:
        return torch.zeros(*size, dtype=dtype, device="cuda")

    q, o = empty(rows, heads, query), empty(rows, heads, value)
    k, v = empty(TOKENS, kv_heads, query), empty(TOKENS, kv_heads, value)
    return {
        "q_extend": q, "k_extend": k, "v_extend": v, "o_extend": o, "q": q, "k": k, "v": v, "o": o,
        "k_buffer": empty(SLOTS, kv_heads, query, dtype=cached),
        "v_buffer": empty(SLOTS, kv_heads, value, dtype=cached),
        "qo_indptr": zeros(BATCH + 1), "kv_indptr": zeros(BATCH + 1), "kv_indices": zeros(SLOTS, dtype=torch.int64),
        "custom_mask": None, "is_causal": True, "mask_indptr": None, "max_len_extend": TOKENS // BATCH,
        "k_scale": 1.0, "v_scale": 1.0, "sm_scale": query**-0.5,
        "attn_logits": empty(BATCH, heads, SPLITS, value, dtype=torch.float32),
        "attn_lse": empty(BATCH, heads, SPLITS, dtype=torch.float32),
        "num_kv_splits": zeros(BATCH), "max_kv_splits": SPLITS,
        "b_start_loc": zeros(BATCH), "b_seq_len": zeros(BATCH), "max_input_len": TOKENS // BATCH,
    }  # fmt: skip
