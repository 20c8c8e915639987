"""Recipe -> the calls of a dry run: which entry points are driven, at which shapes, and which of them decide."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from builder.document import Document, pretty_json
from builder.preflight.serving import served_quantization, tensor_parallel
from builder.verify.launch import tiny_options
from builder.verify.tiny.checkpoint import describing_files
from builder.verify.tiny.config import GPU

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.recipe.model import Serve

TABLE = Path(__file__).with_name("models.yaml")
# Other heads that models of today have, listed and not judged: query, value, heads, heads of keys.
SURVEY = ((64, 64, 32, 8), (128, 128, 32, 8), (192, 128, 16, 16))
FP8, BF16 = "float8_e4m3fn", "bfloat16"
# Of SGLang's kernel package: what every model calls, and what its own NVFP4 experts do.
ALWAYS_CALLED, NVFP4_EXPERTS = ("rmsnorm", "fused_add_rmsnorm", "silu_and_mul"), ("scaled_fp4_quant", "cutlass_moe_fp4")
Group = dict[str, Any]


class Attention(Document):
    """One call of attention: the head dimensions of queries and values."""

    phase: Literal["extend", "decode"]
    query: int
    value: int
    latent: bool


class ModelShapes(Document):
    """The sizes of a model that its kernels see."""

    source: str
    hidden: int
    vocabulary: int
    heads: int
    rope: int
    experts: int
    per_token: int
    expert_width: int
    attention: tuple[Attention, ...]


class _Table(Document):
    models: dict[str, ModelShapes]


@cache
def model_shapes(name: str) -> ModelShapes:
    """Return the shapes of a smoke test's model."""
    plain = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return _Table.from_json(pretty_json({"models": plain}), source=TABLE.name).models[name]


def planned_groups(model: str, serve: Serve | None, stack: tuple[str, ...]) -> list[Group]:
    """Return the groups of calls for a recipe. A call decides if the server, as it is started, can make it.

    Nothing of SGLang is driven where another engine serves.
    """
    shapes = model_shapes(model)
    groups: list[Group] = [
        {
            "name": "torch",
            "drive": "torch_ops",
            "decides": True,
            **{name: getattr(shapes, name) for name in ("hidden", "vocabulary", "experts", "per_token", "rope")},
        }
    ]
    if "sglang" in stack and (serve is None or serve.engine == "sglang"):
        groups += [
            _group("attention", "sglang_attention", list(_attention(shapes, serve))),
            _group("experts", "sglang_moe", list(_experts(shapes, serve))),
            _kernels(shapes, serve),
        ]
        chosen = list(_of_flashinfer(shapes, serve))
        groups += [_group("flashinfer", "flashinfer_jit", chosen)] if chosen else []
        groups += [_engine(serve)] if serve else []
    return groups


def _group(name: str, drive: str, calls: list[dict[str, Any]]) -> Group:
    return {"name": name, "drive": drive, "decides": any(call["decides"] for call in calls), "shapes": calls}


def _kernels(shapes: ModelShapes, serve: Serve | None) -> Group:
    own = _quantization(serve) == "nvfp4" and _option(serve, "moe-runner-backend") in {None, "auto", "cutlass"}
    return {
        "name": "kernels",
        "drive": "sglang_kernels",
        "decides": True,
        **{name: getattr(shapes, name) for name in ("hidden", "vocabulary", "experts", "per_token", "rope")},
        "width": shapes.expert_width // _ranks(serve),
        "heads": shapes.heads // _ranks(serve),
        "deciding": [*ALWAYS_CALLED, *(NVFP4_EXPERTS if own else ())],
    }


def _engine(serve: Serve) -> Group:
    files = describing_files(GPU)
    return {
        "name": "engine",
        "drive": "sglang_engine",
        "decides": False,
        "arguments": list(tiny_options(serve, graphs=False)),
        "files": {name: content.decode() for name, content in files.items()},
    }


def _attention(shapes: ModelShapes, serve: Serve | None) -> Iterator[dict[str, Any]]:
    heads = shapes.heads // _ranks(serve)
    cached = _cached(serve)
    for call in shapes.attention:
        backend = _backend(serve, call.phase)
        of_model = {
            "phase": call.phase,
            "query": call.query,
            "value": call.value,
            "heads": heads,
            "kv_heads": 1 if call.latent else heads,
            "activations": BF16,
        }
        yield {**of_model, "kv": cached, "decides": backend in {None, "triton"}}
        yield {**of_model, "kv": BF16 if cached == FP8 else FP8, "decides": False}
    for query, value, all_heads, kv_heads in SURVEY:
        for phase in ("extend", "decode"):
            size = {"phase": phase, "query": query, "value": value, "heads": all_heads, "kv_heads": kv_heads}
            yield {**size, "activations": BF16, "kv": BF16, "decides": False}
    prefill = {"phase": "prefill", "query": 128, "value": 128, "heads": 8, "kv_heads": 8}
    yield {**prefill, "activations": "float32", "kv": "float32", "decides": False}


def _experts(shapes: ModelShapes, serve: Serve | None) -> Iterator[dict[str, Any]]:
    quantised = _quantization(serve)
    own = FP8 if quantised == "fp8" else BF16
    decides = _option(serve, "moe-runner-backend") in {None, "auto", "triton"} and "fp4" not in quantised
    width = shapes.expert_width // _ranks(serve)
    size = {"experts": shapes.experts, "width": width, "hidden": shapes.hidden, "chosen": shapes.per_token}
    for tokens in (4, 512):
        yield {**size, "tokens": tokens, "weights": own, "blocks": False, "decides": decides}
    # The default configuration of FP8 experts, which no file for a card replaces (sglang #16975, #8513).
    known = {"experts": 64, "width": 768, "hidden": 2048, "chosen": 8, "tokens": 512, "weights": FP8}
    for blocks in (False, True):
        yield {**known, "blocks": blocks, "decides": False}


def _of_flashinfer(shapes: ModelShapes, serve: Serve | None) -> Iterator[dict[str, Any]]:
    """Yield the modules of kernels that the server, as it is started, asks FlashInfer for."""
    taken = [call for call in shapes.attention if _backend(serve, call.phase) == "flashinfer"]
    for latent, query, value in dict.fromkeys((call.latent, call.query, call.value) for call in taken):
        kind = "latent" if latent else "ragged"
        yield {"kind": kind, "query": query, "value": value, "kv": _cached(serve), "decides": True}
    if _option(serve, "moe-runner-backend") == "flashinfer_cutlass":
        yield {"kind": "experts", "decides": True}


def _quantization(serve: Serve | None) -> str:
    return (served_quantization(serve) if serve else None) or ""


def _cached(serve: Serve | None) -> str:
    return FP8 if "fp8" in str(_option(serve, "kv-cache-dtype")) else BF16


def _backend(serve: Serve | None, phase: str) -> str | int | float | bool | None:
    side = "prefill" if phase == "extend" else "decode"
    return _option(serve, f"{side}-attention-backend", "attention-backend")


def _ranks(serve: Serve | None) -> int:
    return tensor_parallel(serve) if serve else 1


def _option(serve: Serve | None, *names: str) -> str | int | float | bool | None:
    """Return the first of these options that the server is started with."""
    given = serve.options if serve else {}
    return next((given[name] for name in names if name in given), None)
