"""FlashInfer's own way to its kernels, up to the compiler: for which architecture it compiles, which nvcc it finds."""

# ruff: noqa: PLC0415 - FlashInfer belongs to the stack under test
from __future__ import annotations

import importlib
import shlex
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

from builder.verify.probe.drives.call import Call, by_name

if TYPE_CHECKING:
    from collections.abc import Iterator


def calls(group: dict[str, Any]) -> Iterator[Call]:
    """Yield the modules of kernels in `shapes`: kind (ragged, latent, experts), head dimensions, type of the cache."""
    for shape in group["shapes"]:
        yield Call(
            name=f"flashinfer {_name(shape)}", run=partial(_obtain, shape), decides=shape["decides"], refuses=True
        )


def _name(shape: dict[str, Any]) -> str:
    size = f" at head dimension {shape['query']}/{shape['value']}, KV {shape['kv']}" if "query" in shape else ""
    return f"{shape['kind']}{size}"


def _obtain(shape: dict[str, Any]) -> None:
    """Do what the first call of these kernels does, but for the compilation itself."""
    spec = _experts() if shape["kind"] == "experts" else _attention(shape)
    if spec.is_aot:
        return
    spec.write_ninja()
    compiler = shlex.split(spec.get_compile_commands()[0]["command"])[0]
    for program in (compiler, "ninja", "g++"):
        if shutil.which(program) is None:
            raise FileNotFoundError(f"{program} compiles {spec.name} at its first call, and the image has none")


def _attention(shape: dict[str, Any]) -> Any:
    import torch

    modules = importlib.import_module("flashinfer.jit.attention")
    own = torch.bfloat16
    known = {
        "backend": "fa2",
        "dtype_q": own,
        "dtype_kv": getattr(torch, shape["kv"]),
        "dtype_o": own,
        "dtype_idx": torch.int32,
        "head_dim_qk": shape["query"],
        "head_dim_vo": shape["value"],
        "head_dim_ckv": shape["value"],
        "head_dim_kpe": shape["query"] - shape["value"],
        "pos_encoding_mode": 0,
        "use_profiler": False,
        "use_sliding_window": False,
        "use_logits_soft_cap": False,
        "use_fp16_qk_reduction": False,
    }
    make = modules.gen_batch_mla_module if shape["kind"] == "latent" else modules.gen_batch_prefill_module
    return by_name(make, known)()


def _experts() -> Any:
    import torch

    major, minor = torch.cuda.get_device_capability()
    arch = {(12, 1): 120, (11, 0): 100}.get((major, minor), major * 10 + minor)  # as flashinfer.fused_moe.core chooses
    fused = importlib.import_module("flashinfer.jit.fused_moe")
    return getattr(fused, f"gen_cutlass_fused_moe_sm{arch}_module")()
