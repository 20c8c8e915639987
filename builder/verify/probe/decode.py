"""Inside the image: decode the tiny NVFP4 checkpoint in the image's own Transformers; the last line reports.

    python3 -m builder.verify.probe.decode FOLDER

FOLDER holds `request.json` and `model/`, the checkpoint. The probe does not know the right answers. Whatever the stack
does becomes a report: which phase was reached, what was decoded, which exception ended it.

    device   "cpu" or "cuda"
    runs     [{dtype, attention}]: the model is loaded once for each; attention null: the stack's own choice
    rounds   lists of requests {prompt, new_tokens}; those of one round are decoded as one batch
    server   the package that serves the model by code of its own, if it has any; null: Transformers' code serves
"""

# ruff: noqa: PLC0415 - importing the stack is a part of what is probed, and may fail

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from builder.verify.probe.nvml import gpu_facts
from builder.verify.probe.report import Report
from builder.verify.probe.stack import model_code

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HOME": "/tmp/huggingface",  # noqa: S108 - the container's own
}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
GROUP = 16
SCALARS = ("weight_scale", "weight_scale_2", "input_scale")
THREADS = 1
"""More threads only wait for each other: the matrices are tiny, and other work may hold the cores."""
NAMES_SHOWN = 5


class CheckpointNotUnderstoodError(Exception):
    """The model code left tensors of the checkpoint unread, or weights of its own unset."""


class NoGpuError(Exception):
    """The stack's torch sees no GPU."""


def main(arguments: list[str]) -> None:
    """Decode and report; exceptions of the stack end in the report."""
    os.environ.update(OFFLINE)
    report = Report()
    report.values["runs"] = []
    try:
        _decode_all(Path(arguments[0]), report)
    except Exception as error:
        report.fail(error)
        traceback.print_exc()
    report.close()


def _decode_all(folder: Path, report: Report) -> None:
    asked = json.loads((folder / "request.json").read_text())
    if asked["server"] is not None:
        report.values["served_by"] = model_code(asked["server"]).get("model_code")
    if asked["device"] == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    report.enter("import")
    import torch
    import transformers  # noqa: F401 - timed here, used below

    if asked["device"] == "cpu":
        torch.set_num_threads(THREADS)
    else:
        report.values["gpu"] = gpu_facts()
        if not torch.cuda.is_available():
            raise NoGpuError("torch.cuda.is_available() is false")
    report.enter("load")
    with tempfile.TemporaryDirectory() as twin:
        write_twin(folder / "model", Path(twin))
        for run in asked["runs"]:
            report.enter("load")
            _run(Path(twin), run, asked, report)
    report.enter("done")


def _run(twin: Path, run: dict[str, Any], asked: dict[str, Any], report: Report) -> None:
    """Load the twin in one format and with one kind of attention, and decode all rounds."""
    import torch

    model = load(twin, run["dtype"], run["attention"], asked["device"])
    seen: dict[str, Any] = {"dtype": run["dtype"], **_model_facts(model), "answers": [], "times": []}
    report.values["runs"].append(seen)
    for requests in asked["rounds"]:
        answers, times = decode(model, requests, report)
        seen["answers"].append(answers)
        seen["times"].append(times)
    if asked["device"] == "cuda":
        seen["peak_gpu_mib"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
        del model
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def write_twin(source: Path, target: Path) -> None:
    """Write the checkpoint with the same values in bfloat16; NVFP4 weights are dequantised with the stack's torch."""
    import safetensors.torch

    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    (target / "config.json").write_text(json.dumps(config))
    packed = safetensors.torch.load_file(source / "model.safetensors")
    plain = {name: _plain(packed, name) for name in packed if name.rpartition(".")[2] not in SCALARS}
    safetensors.torch.save_file(plain, target / "model.safetensors", metadata={"format": "pt"})


def load(folder: Path, dtype: str, attention: str | None, device: str) -> Any:
    """Load with Transformers' own model class, and make sure that every tensor found its place."""
    import torch
    import transformers

    kind = {} if attention is None else {"attn_implementation": attention}
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), output_loading_info=True, **kind
    )
    left = {kind: sorted(map(str, names)) for kind, names in info.items() if names}
    if left:
        parts = [f"{kind}: {', '.join(names[:NAMES_SHOWN])} ({len(names)})" for kind, names in left.items()]
        raise CheckpointNotUnderstoodError("; ".join(parts))
    return model.to(device).eval()


def decode(
    model: Any,
    requests: list[dict[str, Any]],
    report: Report,
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Decode greedily after prompts of one length, one step at a time, with the key-value cache; time it."""
    import torch

    steps: list[list[float | None]] = []
    clock = [time.monotonic()]

    def watch(_: Any, scores: Any) -> Any:
        steps.append([_margin(row) for row in scores])
        clock.append(time.monotonic())
        report.enter("decode")
        return scores

    report.enter("prefill")
    prompts = torch.tensor([request["prompt"] for request in requests], device=model.device)
    with torch.inference_mode():
        sequences = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            logits_processor=[watch],
            max_new_tokens=max(request["new_tokens"] for request in requests),
            do_sample=False,
            use_cache=True,
        )
    answers = []
    for row, request in enumerate(requests):
        tokens = sequences[row, prompts.shape[1] :].tolist()[: request["new_tokens"]]
        answers.append({"tokens": tokens, "margins": [step[row] for step in steps[: request["new_tokens"]]]})
    return answers, _times(clock, len(requests))


def _times(clock: list[float], rows: int) -> dict[str, float]:
    """Return the time to the first token and the tokens per second after it."""
    took = max(clock[-1] - clock[1], 1e-6)
    rate = rows * (len(clock) - 2) / took
    return {"first_token_seconds": round(clock[1] - clock[0], 4), "decode_tokens_per_second": round(rate, 2)}


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


if __name__ == "__main__":
    main(sys.argv[1:])
