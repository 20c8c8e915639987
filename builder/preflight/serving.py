"""Facts about the server: its options, its environment, the checkpoint, and the memory that they need together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.preflight.knowledge.tables import Checkpoint, ModelFamily, model_table, package_table
from builder.preflight.resources import kv_bytes_per_token, plan_memory, weights_per_gpu

if TYPE_CHECKING:
    from builder.preflight.pins import MaybeFacts, Pins
    from builder.recipe.model import Recipe, Serve

_DECODES = frozenset({"cpu-decode", "gpu-decode"})
_SMOKE_FAMILY = "glm-5"
_FINGERPRINT = re.compile(r"[0-9a-f]{12}")
_REQUIRED_CUDA = re.compile(r"cuda>=(\d+\.\d+)")
_QUANTIZATIONS = {"modelopt_fp4": "nvfp4", "petit_nvfp4": "nvfp4"}
_DSA_OPTIONS = tuple(f"{kind}-{phase}-backend" for kind in ("nsa", "dsa") for phase in ("prefill", "decode"))
_TP_OPTIONS = ("tp", "tp-size", "tensor-parallel-size")
_SHM_UNITS = {"m": 1 << 20, "g": 1 << 30}


def serving_facts(pins: Pins) -> MaybeFacts:
    """Return the facts about what is served and smoke-tested, and how."""
    recipe = pins.recipe
    smoked = _family_type() if _DECODES.intersection(recipe.smoke.require) else None
    if recipe.serve is None:
        return {"model.type": smoked}
    served = _served_family(recipe)
    model_type = served.model_type if served else None
    return {
        "model.type": model_type or smoked,
        "serve.model-type": model_type,
        **_option_facts(recipe.serve),
        **_container_facts(recipe.serve),
        **_memory_facts(pins, recipe.serve),
    }


def served_quantization(serve: Serve) -> str | None:
    """Return the format of the weights as the server takes them, such as nvfp4; None if it is not known.

    The option's, else the checkpoint's. `modelopt` lets SGLang read the checkpoint's own (`ModelConfig`).
    """
    asked, checkpoint = str(serve.options.get("quantization", "")), _checkpoint(serve)
    if asked in {"", "modelopt"}:
        return checkpoint.quantization if checkpoint else None
    return _QUANTIZATIONS.get(asked, asked)


def _family_type() -> str:
    return model_table().families[_SMOKE_FAMILY].model_type


def _served_family(recipe: Recipe) -> ModelFamily | None:
    model = (recipe.serve.model or "").lower() if recipe.serve else ""
    families = model_table().families.values()
    return next((family for family in families if any(name in model for name in family.names)), None)


def _checkpoint(serve: Serve) -> Checkpoint | None:
    return model_table().checkpoints.get(serve.model or "")


def _option_facts(serve: Serve) -> MaybeFacts:
    options = serve.options
    checkpoint = _checkpoint(serve)
    return {
        "serve.engine": serve.engine,
        "serve.quantization": served_quantization(serve),
        "serve.excludes-shared-experts": checkpoint.excludes_shared_experts if checkpoint else None,
        "serve.attention": _text(options.get("attention-backend")),
        "serve.kv-dtype": str(options.get("kv-cache-dtype", "auto")),
        "serve.dsa-backends": tuple(str(options[name]) for name in _DSA_OPTIONS if name in options),
        "serve.fp4-backend": _text(options.get("fp4-gemm-backend")),
        "serve.moe-runner": str(options.get("moe-runner-backend", "auto")),
        "serve.deep-gemm": not {"0", "false"}.intersection(_deep_gemm_switches(serve)),
        "serve.fuses-shared-experts": options.get("disable-shared-experts-fusion") is not True,
        "serve.custom-all-reduce": options.get("disable-custom-all-reduce") is not True,
        "serve.tp": tensor_parallel(serve),
        "serve.mem-fraction": _number(options.get("mem-fraction-static", options.get("gpu-memory-utilization"))),
        "serve.graph-max-bs": _number(options.get("cuda-graph-max-bs")),
    }


def _deep_gemm_switches(serve: Serve) -> list[str]:
    names = ("SGLANG_ENABLE_JIT_DEEPGEMM", "SGLANG_ENABLE_DEEP_GEMM")
    return [serve.env.get(name, "1").lower() for name in names]


def _container_facts(serve: Serve) -> MaybeFacts:
    required = _REQUIRED_CUDA.search(serve.env.get("NVIDIA_REQUIRE_CUDA", ""))
    caches = [name for name in package_table().jit_caches if name in serve.env]
    return {
        "serve.shm": int(serve.shm_size[:-1]) * _SHM_UNITS[serve.shm_size[-1]] if serve.shm_size else None,
        "serve.ipc": serve.ipc,
        "serve.require-cuda": required.group(1) if required else None,
        "serve.fixed-caches": tuple(name for name in caches if not _FINGERPRINT.search(serve.env[name])),
    }


def _memory_facts(pins: Pins, serve: Serve) -> MaybeFacts:
    family, checkpoint = _served_family(pins.recipe), _checkpoint(serve)
    fraction = _number(serve.options.get("mem-fraction-static"))
    if family is None or checkpoint is None or fraction is None or pins.target.memory is None:
        return {}
    plan = plan_memory(
        memory=pins.target.memory,
        fraction=fraction,
        weights=weights_per_gpu(checkpoint, family, tensor_parallel(serve)),
        bytes_per_token=kv_bytes_per_token(family, str(serve.options.get("kv-cache-dtype", "fp8_e4m3"))),
    )
    return {
        "memory.weights": plan.weights,
        "memory.static": plan.static,
        "memory.headroom": plan.headroom,
        "memory.kv-tokens": plan.kv_tokens,
        "memory.least-headroom": model_table().least_headroom,
    }


def tensor_parallel(serve: Serve) -> int:
    """Return over how many GPUs the server splits each layer; 1 if it is not said."""
    options = serve.options
    value = next((options[name] for name in _TP_OPTIONS if name in options), 1)
    return value if isinstance(value, int) and value > 0 else 1


def _number(value: str | float | bool | None) -> int | float | None:  # noqa: FBT001 - a value of an option
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(value: str | float | bool | None) -> str | None:  # noqa: FBT001 - a value of an option
    return None if value is None else str(value)
