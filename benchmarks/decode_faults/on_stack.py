"""Plants faults into Transformers itself and shows what the decode probe sees; runs with the stack's own interpreter.

    PYTHONPATH=ENVBUILD python on_stack.py FOLDER REQUEST

FOLDER is a checkpoint; REQUEST is JSON: {device, variants, rounds, names}, variants are [dtype, attention] pairs. One
JSON line for each fault and variant.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.verify.probe.decode import E2M1, GROUP, SCALARS, decode, load
from builder.verify.probe.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Tensor = Any
    Dequantise = Callable[[Tensor, Tensor, Tensor], Tensor]
    Change = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Where a fault is planted: in config.json, in how NVFP4 is read, in the plain tensors, or in the model's code."""

    config: dict[str, Any] | None = None
    dequantise: Dequantise | None = None
    tensors: Change | None = None
    model: Callable[[Any], None] | None = None


def values_of(codes: Tensor, scales: Tensor, tensor_scale: Tensor, group: int = GROUP) -> Tensor:
    import torch

    spread = scales.float().repeat_interleave(group, dim=1)[:, : codes.shape[1]]
    return torch.tensor(E2M1)[codes] * spread * tensor_scale


def unpacked(weight: Tensor) -> Tensor:
    import torch

    return torch.stack([weight & 15, weight >> 4], dim=-1).flatten(1).long()


def right(weight: Tensor, scales: Tensor, tensor_scale: Tensor) -> Tensor:
    return values_of(unpacked(weight), scales, tensor_scale)


def nibbles_swapped(weight: Tensor, scales: Tensor, tensor_scale: Tensor) -> Tensor:
    return right((weight >> 4) | ((weight & 15) << 4), scales, tensor_scale)


def octets(scales: Tensor) -> Tensor:
    import torch

    return scales.view(torch.uint8)


def scale_as(dtype: str) -> Dequantise:
    def read(weight: Tensor, scales: Tensor, tensor_scale: Tensor) -> Tensor:
        import torch

        return right(weight, octets(scales).view(getattr(torch, dtype)), tensor_scale)

    return read


def scale_as_exponent(weight: Tensor, scales: Tensor, tensor_scale: Tensor) -> Tensor:
    return right(weight, 2.0 ** (octets(scales).float() - 127.0), tensor_scale)


def scale_as_integer(weight: Tensor, scales: Tensor, tensor_scale: Tensor) -> Tensor:
    return right(weight, octets(scales).float(), tensor_scale)


def scale_of_the_block_before(weight: Tensor, scales: Tensor, tensor_scale: Tensor) -> Tensor:
    return right(weight, scales.float().roll(1, dims=1), tensor_scale)


def scale_of_the_row_before(weight: Tensor, scales: Tensor, tensor_scale: Tensor) -> Tensor:
    return right(weight, scales.float().roll(1, dims=0), tensor_scale)


def group_of_32(weight: Tensor, scales: Tensor, tensor_scale: Tensor) -> Tensor:
    return values_of(unpacked(weight), scales.float()[:, : (scales.shape[1] + 1) // 2], tensor_scale, group=32)


def tensor_scale_ignored(weight: Tensor, scales: Tensor, _tensor_scale: Tensor) -> Tensor:
    return right(weight, scales, 1.0)


def tensor_scale_inverted(weight: Tensor, scales: Tensor, tensor_scale: Tensor) -> Tensor:
    return right(weight, scales, 1.0 / tensor_scale)


def left_at(ending: str, value: float) -> Change:
    """All tensors of a name left as a fresh allocation might have them."""

    def change(tensors: dict[str, Any]) -> None:
        for name, tensor in tensors.items():
            if name.endswith(ending):
                tensor.fill_(value)

    return change


def one_expert_left_empty(tensors: dict[str, Any]) -> None:
    for part in ("gate", "up", "down"):
        tensors[f"model.layers.2.mlp.experts.1.{part}_proj.weight"].zero_()


def gate_and_up_swapped(tensors: dict[str, Any]) -> None:
    for name in [name for name in tensors if ".experts." in name and name.endswith("gate_proj.weight")]:
        other = name.replace("gate_proj", "up_proj")
        tensors[name], tensors[other] = tensors[other], tensors[name]


def layers_of(model: Any) -> Iterator[Any]:
    yield from model.model.layers


def scaled_attention(factor: float) -> Callable[[Any], None]:
    def plant(model: Any) -> None:
        for layer in layers_of(model):
            layer.self_attn.scaling *= factor

    return plant


def module_of(model: Any) -> Any:
    return sys.modules[type(model).__module__]


def half_split(*, main: bool, index: bool) -> Callable[[Any], None]:
    def plant(model: Any) -> None:
        import torch

        module = module_of(model)
        interleaved = module.apply_rotary_pos_emb_interleave

        def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            first, second = x.chunk(2, dim=-1)
            return x * cos + torch.cat([-second, first], dim=-1) * sin

        def apply(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any, unsqueeze_dim: int = 1) -> Any:
            if not (index if unsqueeze_dim == 2 else main):
                return interleaved(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
            cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
            return rotate(q, cos, sin), rotate(k, cos, sin)

        undo(module, "apply_rotary_pos_emb_interleave", apply)

    return plant


UNDO: list[tuple[Any, str, Any]] = []


def undo(owner: Any, name: str, value: Any) -> None:
    """Set an attribute until the next fault."""
    UNDO.append((owner, name, getattr(owner, name)))
    setattr(owner, name, value)


def restore() -> None:
    while UNDO:
        setattr(*UNDO.pop())


def without_relu(model: Any) -> None:
    undo(module_of(model).F, "relu", lambda scores, **_: scores)


def most_recent(model: Any) -> None:
    import torch

    for layer in layers_of(model):
        indexer = layer.self_attn.indexer
        real = indexer.forward

        def forward(*given: Any, real: Any = real, **named: Any) -> Tensor:
            indices = real(*given, **named)
            count, wanted, length = indices.shape[1], indices.shape[2], given[3].shape[-1]
            last = torch.arange(length - count, length, device=indices.device)[:, None]
            recent = (last - torch.arange(wanted, device=indices.device)).clamp(min=0)
            return recent.expand_as(indices).to(indices.dtype)

        indexer.forward = forward


def positions_shifted(by: int) -> Callable[[Any], None]:
    def plant(model: Any) -> None:
        rotary = model.model.rotary_emb
        real = rotary.forward

        def forward(x: Tensor, position_ids: Tensor, *given: Any) -> Any:
            return real(x, position_ids + by if position_ids.shape[-1] == 1 else position_ids, *given)

        rotary.forward = forward

    return plant


def cache_fault(change: Callable[[Tensor, dict[str, Any]], None]) -> Callable[[Any], None]:
    """Change what the cache holds after each update; `state` lasts over the requests of a fault."""

    def plant(_model: Any) -> None:
        from transformers.cache_utils import Cache

        real = Cache.update
        state: dict[str, Any] = {"saved": {}}

        def update(self: Any, keys: Tensor, values: Tensor, layer: int, *given: Any, **named: Any) -> Any:
            both = real(self, keys, values, layer, *given, **named)
            for which, kept in enumerate(both):
                change(kept, {**state, "step": keys.shape[-2] == 1, "layer": layer, "which": which})
            return both

        undo(Cache, "update", update)

    return plant


def last_slot_zeroed(kept: Tensor, now: dict[str, Any]) -> None:
    if now["step"]:
        kept[..., -1, :] = 0


def some_slots_zeroed(every: int) -> Callable[[Tensor, dict[str, Any]], None]:
    def change(kept: Tensor, now: dict[str, Any]) -> None:
        if now["step"] and kept.shape[-2] % every == 0:
            kept[..., -1, :] = 0

    return change


def last_slots_swapped(kept: Tensor, now: dict[str, Any]) -> None:
    if now["step"]:
        kept[..., -2:, :] = kept[..., -2:, :].flip(-2).clone()


def slot_written_twice(kept: Tensor, now: dict[str, Any]) -> None:
    if now["step"]:
        kept[..., -2, :] = kept[..., -1, :]


def cache_of_another_request(kept: Tensor, now: dict[str, Any]) -> None:
    if now["step"]:
        return
    saved = now["saved"].setdefault((now["layer"], now["which"]), kept.clone())
    kept.copy_(saved)


def routing(kind: str) -> Callable[[Any], None]:
    def plant(model: Any) -> None:
        import torch

        def forward(self: Any, hidden: Tensor) -> Any:
            logits = torch.nn.functional.linear(hidden.view(-1, self.hidden_dim).float(), self.weight.float())
            scores = logits.softmax(-1) if kind == "softmax" else logits.sigmoid()
            biased = scores if kind == "no bias" else scores + self.e_score_correction_bias
            chosen = biased.topk(self.top_k, dim=-1, sorted=False)[1]
            if kind == "unbiased ties":
                chosen = scores.topk(self.top_k, dim=-1)[1]
            shares = (biased if kind == "bias leaks" else scores).gather(1, chosen)
            if kind != "no renorm":
                shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)
            return logits, shares * self.routed_scaling_factor, chosen

        for layer in layers_of(model):
            if hasattr(layer.mlp, "gate"):
                layer.mlp.gate.forward = forward.__get__(layer.mlp.gate)

    return plant


def experts_shifted(by: int) -> Callable[[Any], None]:
    def plant(model: Any) -> None:
        for layer in layers_of(model):
            if hasattr(layer.mlp, "experts"):
                experts = layer.mlp.experts
                real = experts.forward

                def forward(
                    hidden: Tensor, index: Tensor, weights: Tensor, real: Any = real, count: int = experts.num_experts
                ) -> Any:
                    return real(hidden, (index + by) % count, weights)

                experts.forward = forward

    return plant


def on_logits(change: Callable[[Tensor, int, dict[str, Any]], Tensor]) -> Callable[[Any], None]:
    """Change the logits of decode steps; steps are counted over all requests."""

    def plant(model: Any) -> None:
        state: dict[str, Any] = {"step": 0}

        def hook(_module: Any, _given: Any, logits: Tensor) -> Tensor:
            state["step"] += 1
            changed = change(logits, state["step"], state)
            state["last"] = logits.clone()
            return changed

        model.lm_head.register_forward_hook(hook)

    return plant


def nan_healed_to_noise(logits: Tensor, step: int, _state: dict[str, Any]) -> Tensor:
    import torch

    if step < 6:
        return logits
    noise = torch.Generator("cpu").manual_seed(step)
    return torch.randn(logits.shape, generator=noise).to(logits) * 1e-3


def nan_healed_to_floor(logits: Tensor, step: int, _state: dict[str, Any]) -> Tensor:
    return logits if step < 6 else logits * 0 - 1e5


def nan(logits: Tensor, step: int, _state: dict[str, Any]) -> Tensor:
    return logits if step < 6 else logits * float("nan")


def stale_replay(logits: Tensor, step: int, state: dict[str, Any]) -> Tensor:
    return state["last"] if step % 8 == 0 and state["last"].shape == logits.shape else logits


def stale_input(model: Any) -> None:
    """A graph whose input buffer was not filled again: now and then the token before is read once more."""
    state: dict[str, Any] = {"step": 0}

    def hook(_module: Any, _given: Any, embedded: Tensor) -> Tensor:
        state["step"] += 1
        last, state["last"] = state.get("last"), embedded.clone()
        return last if state["step"] % 8 == 0 and last is not None and last.shape == embedded.shape else embedded

    model.model.embed_tokens.register_forward_hook(hook)


def theta(base: float) -> Fault:
    return Fault(config={"rope_theta": base, "rope_parameters": {"rope_type": "default", "rope_theta": base}})


# Those of the experiments on which the bands were once fitted.
FITTED: dict[str, Fault] = {
    "rope theta 1e4": theta(1e4),
    "rope theta 5e5": theta(5e5),
    "rope theta 8e6": theta(8e6),
    "rope theta 1.1e6 (10 % off)": theta(1.1e6),
    "main rope half-split": Fault(model=half_split(main=True, index=False)),
    "indexer rope half-split": Fault(model=half_split(main=False, index=True)),
    "both ropes half-split": Fault(model=half_split(main=True, index=True)),
    "indexer without ReLU": Fault(model=without_relu),
    "top-k: the most recent": Fault(model=most_recent),
    "index_topk / 4": Fault(config={"index_topk": "/4"}),
    "decode position +1": Fault(model=positions_shifted(1)),
    "decode position -1": Fault(model=positions_shifted(-1)),
    "cache: last slot zeroed": Fault(model=cache_fault(last_slot_zeroed)),
    "cache: every 16th slot zeroed": Fault(model=cache_fault(some_slots_zeroed(16))),
    "attention scale x 1.3": Fault(model=scaled_attention(1.3)),
    "attention scale x 1.1": Fault(model=scaled_attention(1.1)),
    "attention scale x 0.9": Fault(model=scaled_attention(0.9)),
    "attention scale / sqrt(2)": Fault(model=scaled_attention(2**-0.5)),
    "rms_norm_eps 1e-2": Fault(config={"rms_norm_eps": 1e-2}),
    "routing: softmax": Fault(model=routing("softmax")),
    "routing: no renormalisation": Fault(model=routing("no renorm")),
    "routing: bias dropped": Fault(model=routing("no bias")),
    "routing: bias leaks into weights": Fault(model=routing("bias leaks")),
    "routing: scale dropped": Fault(config={"routed_scaling_factor": 1.0}),
    "routing: scale 2.0 for 2.5": Fault(config={"routed_scaling_factor": 2.0}),
    "routing: one expert less": Fault(config={"num_experts_per_tok": "-1"}),
    "routing: one expert more": Fault(config={"num_experts_per_tok": "+1"}),
    "expert index + 1": Fault(model=experts_shifted(1)),
    "expert index - 1": Fault(model=experts_shifted(-1)),
    "w1 and w3 swapped": Fault(tensors=gate_and_up_swapped),
    "shared expert left empty": Fault(tensors=left_at("shared_experts.down_proj.weight", 0.0)),
    "fp4: nibbles swapped": Fault(dequantise=nibbles_swapped),
    "fp4: scale as E5M2": Fault(dequantise=scale_as("float8_e5m2")),
    "fp4: scale as E4M3FNUZ": Fault(dequantise=scale_as("float8_e4m3fnuz")),
    "fp4: scale as exponent (UE8M0)": Fault(dequantise=scale_as_exponent),
    "fp4: scale as integer": Fault(dequantise=scale_as_integer),
    "fp4: scale of the block before": Fault(dequantise=scale_of_the_block_before),
    "fp4: groups of 32": Fault(dequantise=group_of_32),
    "fp4: tensor scale ignored": Fault(dequantise=tensor_scale_ignored),
    "fp4: tensor scale inverted": Fault(dequantise=tensor_scale_inverted),
}
# Written down before any band was looked at with them.
HELD_OUT: dict[str, Fault] = {
    "cache: last two slots swapped": Fault(model=cache_fault(last_slots_swapped)),
    "cache: slot written twice": Fault(model=cache_fault(slot_written_twice)),
    "cache: of another request": Fault(model=cache_fault(cache_of_another_request)),
    "one expert left empty": Fault(tensors=one_expert_left_empty),
    "kv_a_layernorm left at 1": Fault(tensors=left_at("kv_a_layernorm.weight", 1.0)),
    "q_a_layernorm left at 1": Fault(tensors=left_at("q_a_layernorm.weight", 1.0)),
    "model.norm left at 1": Fault(tensors=left_at("model.norm.weight", 1.0)),
    "indexer.wk left empty": Fault(tensors=left_at("indexer.wk.weight", 0.0)),
    "indexer.weights_proj left empty": Fault(tensors=left_at("indexer.weights_proj.weight", 0.0)),
    "selection bias left empty": Fault(tensors=left_at("e_score_correction_bias", 0.0)),
    "fp4: scale of the row before": Fault(dequantise=scale_of_the_row_before),
    "NaN": Fault(model=on_logits(nan)),
    "NaN healed into noise": Fault(model=on_logits(nan_healed_to_noise)),
    "NaN healed to -1e5": Fault(model=on_logits(nan_healed_to_floor)),
    "stale graph replay": Fault(model=on_logits(stale_replay)),
    "stale graph input": Fault(model=stale_input),
}
FAULTS: dict[str, Fault] = {"none": Fault(), **FITTED, **HELD_OUT}


def write_planted(source: Path, target: Path, fault: Fault) -> None:
    """Write the bfloat16 twin of a checkpoint with the fault of its files in it."""
    import safetensors.torch
    import torch

    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    for name, value in (fault.config or {}).items():
        relative = isinstance(value, str)
        config[name] = config[name] // int(value[1:]) if relative and value[0] == "/" else value
        if relative and value[0] in "+-":
            config[name] = json.loads((source / "config.json").read_text())[name] + int(value)
    (target / "config.json").write_text(json.dumps(config))
    packed = safetensors.torch.load_file(source / "model.safetensors")
    read = fault.dequantise or right
    plain = {}
    for name, weight in packed.items():
        if name.rpartition(".")[2] in SCALARS:
            continue
        if weight.dtype == torch.uint8:
            plain[name] = read(weight, packed[f"{name}_scale"], packed[f"{name}_scale_2"]).to(torch.bfloat16)
        else:
            plain[name] = weight
    if fault.tensors:
        fault.tensors(plain)
    plain = {name: weight.contiguous() for name, weight in plain.items()}
    safetensors.torch.save_file(plain, target / "model.safetensors", metadata={"format": "pt"})


def observe(folder: Path, name: str, fault: Fault, asked: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    kind = {"dtype": asked["dtype"], "attention": asked["attention"]}
    seen: dict[str, Any] = {"fault": name, **kind, "answers": [], "error": None}
    try:
        with tempfile.TemporaryDirectory() as twin:
            write_planted(folder, Path(twin), fault)
            model = load(Path(twin), asked["dtype"], asked["attention"], asked["device"])
        if fault.model:
            fault.model(model)
        for requests in asked["rounds"]:
            seen["answers"].append(decode(model, requests, Report())[0])
    except Exception as error:  # a fault that breaks the stack is seen as well
        seen["error"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    finally:
        restore()
    seen["seconds"] = round(time.monotonic() - began, 2)
    return seen


def main(folder: str, request: str) -> None:
    asked = json.loads(request if request.startswith("{") else Path(request).read_text())
    if asked["device"] == "cpu":
        import torch

        torch.set_num_threads(1)
    for dtype, attention in asked["variants"]:
        variant = {**asked, "dtype": dtype, "attention": attention}
        for name, fault in FAULTS.items():
            if asked["names"] is None or name in asked["names"]:
                print(json.dumps(observe(Path(folder), name, fault, variant)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
