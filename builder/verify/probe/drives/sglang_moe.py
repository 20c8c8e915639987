"""SGLang's Triton experts, with the configuration that it chooses for the card by its product name."""

# ruff: noqa: PLC0415, SLF001 - SGLang belongs to the stack under test
from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from builder.verify.probe.drives.call import Call, by_name
from builder.verify.probe.drives.run_time import leave_out_nvcc

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACES = (
    "sglang.srt.layers.moe.fused_moe_triton.fused_moe",
    "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe",
)


def calls(group: dict[str, Any]) -> Iterator[Call]:
    """Yield the calls for `shapes`: tokens, experts, width, hidden, chosen, weights, decides."""
    import torch

    leave_out_nvcc()
    fused = _module()
    _pretend_arguments()
    for shape in group["shapes"]:
        call = by_name(fused.fused_experts_impl, _arguments(shape, torch))
        kind = f"{shape['weights']}{' in blocks' if shape['blocks'] else ''}"
        name = f"experts {shape['experts']} of {shape['width']}x{shape['hidden']}, {shape['tokens']} tokens, {kind}"
        yield Call(name=name, run=call, decides=shape["decides"])


def _module() -> Any:
    for place in PLACES[:-1]:
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not place.startswith(error.name):
                raise
    return importlib.import_module(PLACES[-1])


def _pretend_arguments() -> None:
    """Give SGLang the few server arguments that this code reads; a server would have set them."""
    from sglang.srt import server_args

    known = SimpleNamespace(
        enable_deterministic_inference=False,
        enable_fused_moe_sum_all_reduce=False,
        rl_on_policy_target=None,
        moe_runner_backend="triton",
    )
    server_args._global_server_args = known


def _arguments(shape: dict[str, Any], torch: Any) -> dict[str, Any]:
    tokens, experts, width, hidden = shape["tokens"], shape["experts"], shape["width"], shape["hidden"]
    weights, blocks = getattr(torch, shape["weights"]), shape["blocks"]

    def empty(*size: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.empty(*size, dtype=dtype, device="cuda")

    scale = torch.float32
    scales = {
        "w1_scale": empty(experts, dtype=scale)
        if not blocks
        else empty(experts, 2 * width // 128, hidden // 128, dtype=scale),
        "w2_scale": empty(experts, dtype=scale)
        if not blocks
        else empty(experts, hidden // 128, width // 128, dtype=scale),
        "use_fp8_w8a8": True,
        "block_shape": [128, 128] if blocks else None,
    }
    return {
        "hidden_states": empty(tokens, hidden),
        "w1": empty(experts, 2 * width, hidden, dtype=weights),
        "w2": empty(experts, hidden, width, dtype=weights),
        "topk_weights": empty(tokens, shape["chosen"], dtype=torch.float32),
        "topk_ids": torch.zeros(tokens, shape["chosen"], dtype=torch.int32, device="cuda"),
        **(scales if shape["weights"].startswith("float8") else {}),
    }
