"""Inside the image: decode the tiny NVFP4 checkpoint on the CPU in the image's own Transformers; the last line reports.

    python3 -m builder.verify.probe.decode FOLDER

FOLDER holds `request.json` and `model/`, the checkpoint. The probe does not know the right answers. Whatever the stack
does becomes a report: which phase was reached, what was decoded, which exception ended it.
"""

# ruff: noqa: PLC0415 - importing the stack is a part of what is probed, and may fail

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import inspect
import json
import os
import platform
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "safetensors", "tokenizers", "numpy")
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HOME": "/tmp/huggingface",  # noqa: S108 - the container's own
    "CUDA_VISIBLE_DEVICES": "",
}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
GROUP = 16
SCALARS = ("weight_scale", "weight_scale_2", "input_scale")
THREADS = 1
"""More threads only wait for each other: the matrices are tiny, and other work may hold the cores."""
TRACEBACK_LINES = 30
NAMES_SHOWN = 5


class CheckpointNotUnderstoodError(Exception):
    """The model code left tensors of the checkpoint unread, or weights of its own unset."""


class Report:
    """What was seen so far; printed at the end, whatever the end is."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"phase": "start", "error": None, "seconds": {}, "answers": []}
        self._entered = time.monotonic()

    def enter(self, phase: str) -> None:
        """Begin a phase and time the one before; the last one entered is where the report ends if something breaks."""
        now, last = time.monotonic(), self.values["phase"]
        seconds = self.values["seconds"]
        seconds[last] = round(seconds.get(last, 0.0) + now - self._entered, 3)
        self._entered = now
        self.values["phase"] = phase
        if phase != last:
            sys.stderr.write(f"{phase} ...\n")

    def fail(self, error: BaseException) -> None:
        """Note the exception that ended the probe."""
        lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
        self.values["error"] = {
            "kind": type(error).__name__,
            "message": str(error),
            "missing_module": error.name if isinstance(error, ModuleNotFoundError) else None,
            "traceback": lines[-TRACEBACK_LINES:],
        }

    def close(self) -> None:
        """Print the report as one line of JSON, with the time of the phase that was reached."""
        self.enter(self.values["phase"])
        self.values["versions"] = _versions()
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.values["peak_memory_mib"] = round(peak_kib / 1024, 1)
        sys.stdout.write(json.dumps(self.values, sort_keys=True) + "\n")
        sys.stdout.flush()


def main(arguments: list[str]) -> None:
    """Decode and report; exceptions of the stack end in the report."""
    os.environ.update(OFFLINE)
    report = Report()
    try:
        _decode_all(Path(arguments[0]), report)
    except Exception as error:
        report.fail(error)
        traceback.print_exc()
    report.close()


def _decode_all(folder: Path, report: Report) -> None:
    report.enter("import")
    import torch
    import transformers  # noqa: F401 - timed here, used below

    torch.set_num_threads(THREADS)
    asked = json.loads((folder / "request.json").read_text())
    report.enter("load")
    with tempfile.TemporaryDirectory() as twin:
        write_twin(folder / "model", Path(twin))
        model = load(Path(twin), asked["dtype"])
    report.values.update(_model_facts(model), dtype=asked["dtype"])
    for request in asked["requests"]:
        report.values["answers"].append(decode(model, request["prompt"], request["new_tokens"], report))
    report.enter("done")


def write_twin(source: Path, target: Path) -> None:
    """Write the checkpoint with the same values in bfloat16; NVFP4 weights are dequantised with the stack's torch."""
    import safetensors.torch

    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    (target / "config.json").write_text(json.dumps(config))
    packed = safetensors.torch.load_file(source / "model.safetensors")
    plain = {name: _plain(packed, name) for name in packed if name.rpartition(".")[2] not in SCALARS}
    safetensors.torch.save_file(plain, target / "model.safetensors", metadata={"format": "pt"})


def load(folder: Path, dtype: str) -> Any:
    """Load with Transformers' own model class, and make sure that every tensor found its place."""
    import torch
    import transformers

    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), output_loading_info=True
    )
    left = {kind: sorted(map(str, names)) for kind, names in info.items() if names}
    if left:
        parts = [f"{kind}: {', '.join(names[:NAMES_SHOWN])} ({len(names)})" for kind, names in left.items()]
        raise CheckpointNotUnderstoodError("; ".join(parts))
    return model.eval()


def decode(model: Any, prompt: list[int], count: int, report: Report) -> dict[str, Any]:
    """Decode `count` tokens greedily after a prompt, one step at a time, with the key-value cache."""
    import torch

    margins: list[float | None] = []

    def watch(_: Any, scores: Any) -> Any:
        margins.append(_margin(scores[0]))
        report.enter("decode")
        return scores

    report.enter("prefill")
    with torch.inference_mode():
        sequence = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            logits_processor=[watch],
            max_new_tokens=count,
            do_sample=False,
            use_cache=True,
        )
    return {"tokens": sequence[0, len(prompt) :].tolist(), "margins": margins}


def _margin(logits: Any) -> float | None:
    """Return the distance of the best token to the second; None if any logit is not finite."""
    best, second = logits.double().topk(2).values.tolist()
    return best - second if bool(logits.isfinite().all()) else None


def _plain(packed: dict[str, Any], name: str) -> Any:
    """Return a tensor of the twin: as it is, or E2M1 code * E4M3 block scale * weight_scale_2, exact in bfloat16."""
    import torch

    weight = packed[name]
    if weight.dtype != torch.uint8:
        return weight
    codes = torch.stack([weight & 15, weight >> 4], dim=-1).flatten(1).long()
    scales = packed[f"{name}_scale"].float().repeat_interleave(GROUP, dim=1)
    values = torch.tensor(E2M1)[codes] * scales * packed[f"{name}_scale_2"]
    return values.to(torch.bfloat16)


def _model_facts(model: Any) -> dict[str, Any]:
    """Return which model code ran: its class, the file's sha256, the attention kind."""
    kind = type(model)
    file = Path(inspect.getfile(kind))
    return {
        "model_class": kind.__name__,
        "model_code": f"{kind.__module__}.{kind.__qualname__}",
        "model_code_sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "attention": str(getattr(model.config, "_attn_implementation", "unknown")),
    }


def _versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that take part, as their metadata say."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


if __name__ == "__main__":
    main(sys.argv[1:])
