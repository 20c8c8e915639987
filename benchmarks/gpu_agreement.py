"""Whether the dry run says what a real GPU does: the same Triton kernels, launched for real and in a dry run.

    PYTHONPATH=. python3 benchmarks/gpu_agreement.py h200 [RESULT.json]

Runs on the GPU itself; needs torch and Triton there and nothing else. Each kernel is launched in one process for real
and in another through `builder.verify.probe.triton_driver`; shared memory, registers, and accepted or refused must be
equal. Exit code 0: they are, for all launches.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from builder.verify.probe.triton_driver import PretendedGpu, pretending

# As in builder/recipe/targets.yaml, which needs more than the standard library to be read.
GPUS = {
    "h200": PretendedGpu(capability=(9, 0), shared_memory=232448, registers=65536, sms=132),
    "rtx-pro-6000": PretendedGpu(capability=(12, 0), shared_memory=101376, registers=65536, sms=188),
}
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
STEPS = 16


@triton.jit  # type: ignore[untyped-decorator]
def product(a, b, c, steps, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, N803, PLR0917
    rows, columns, depth = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        x = tl.load(a + rows * K * steps + step * K + depth[None, :])
        y = tl.load(b + (step * K + depth)[:, None] * N + columns)
        total = tl.dot(x, y, total)
    tl.store(c + rows * N + columns, total)


@triton.jit  # type: ignore[untyped-decorator]
def attention(q, k, v, o, keys, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, V: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, N803, PLR0917
    rows, wide, deep = tl.arange(0, M)[:, None], tl.arange(0, D)[None, :], tl.arange(0, V)[None, :]
    query = tl.load(q + rows * D + wide)
    best, total = tl.full((M,), -1e30, tl.float32), tl.zeros((M,), tl.float32)
    out = tl.zeros((M, V), dtype=tl.float32)
    for start in range(0, keys, N):
        places = start + tl.arange(0, N)
        scores = tl.dot(query, tl.load(k + places[None, :] * D + tl.arange(0, D)[:, None])) * 0.05
        top = tl.maximum(best, tl.max(scores, 1))
        weights, old = tl.exp(scores - top[:, None]), tl.exp(best - top)
        total = total * old + tl.sum(weights, 1)
        out = out * old[:, None] + tl.dot(weights.to(query.dtype), tl.load(v + places[:, None] * V + deep))
        best = top
    tl.store(o + rows * V + deep, (out / total[:, None]).to(query.dtype))


PRODUCTS = [
    (m, n, k, stages, warps, kind)
    for m, n, k, warps, kind in (
        (64, 64, 64, 4, "bf16"),
        (128, 64, 64, 4, "fp16"),
        (128, 128, 64, 8, "bf16"),
        (128, 256, 64, 8, "bf16"),
        (64, 128, 128, 4, "bf16"),
        (64, 64, 64, 4, "fp32"),
    )
    for stages in (1, 2, 3, 4, 6, 8)
]
ATTENTIONS = [
    (m, n, d, v, warps, kind)
    for m, n, d, v, warps, kind in (
        (64, 64, 64, 64, 4, "bf16"),
        (128, 64, 128, 128, 8, "bf16"),
        (64, 64, 256, 256, 8, "bf16"),
        (128, 64, 256, 256, 8, "bf16"),
        (32, 64, 512, 512, 8, "bf16"),
        (128, 128, 256, 256, 8, "fp16"),
        (64, 128, 512, 512, 8, "bf16"),
        (64, 32, 128, 128, 4, "fp32"),
    )
]
CASES = [("product", *case) for case in PRODUCTS] + [("attention", *case) for case in ATTENTIONS]


def launch(case: tuple[Any, ...]) -> Any:
    """Launch one case and return the compiled kernel."""
    which, *numbers, warps, kind = case
    dtype = TYPES[kind]

    def ones(*size: int, of: torch.dtype = dtype) -> torch.Tensor:
        return torch.ones(*size, dtype=of, device="cuda")

    if which == "product":
        m, n, k, stages = numbers
        a, b, c = ones(m, k * STEPS), ones(k * STEPS, n), ones(m, n, of=torch.float32)
        return product[1,](a, b, c, STEPS, m, n, k, stages, num_warps=warps)
    m, n, d, v = numbers
    return attention[1,](ones(m, d), ones(1024, d), ones(1024, v), ones(m, v), 1024, m, n, d, v, num_warps=warps)


def on_the_gpu() -> list[dict[str, Any]]:
    """Launch all cases for real. What Triton itself refuses says how much it wanted."""
    answers = []
    for case in CASES:
        try:
            kernel = launch(case)
            torch.cuda.synchronize()
            answers.append({"shared": kernel.metadata.shared, "registers": kernel.n_regs, "refused": False})
        except triton.runtime.errors.OutOfResources as error:
            answers.append({"shared": error.required, "registers": 0, "refused": True})
    return answers


def in_the_dry_run(gpu: PretendedGpu) -> list[dict[str, Any]]:
    """Launch all cases against the pretended GPU."""
    answers = []
    with pretending(gpu) as recorder:
        for case in CASES:
            recorder.take_touched()
            launch(case)
            (seen,) = recorder.take_touched() or [recorder.launches[-1]]
            refused = seen.refused is not None
            answers.append({"shared": seen.shared, "registers": seen.registers, "refused": refused})
    return answers


def device_facts(gpu: PretendedGpu) -> dict[str, list[Any]]:
    """Return what the table says of the GPU and what the GPU says itself, by name."""
    seen = torch.cuda.get_device_properties(0)
    return {
        "capability": [list(gpu.capability), [seen.major, seen.minor]],
        "shared memory per block": [gpu.shared_memory, seen.shared_memory_per_block_optin],
        "registers": [gpu.registers, seen.regs_per_multiprocessor],
        "processors": [gpu.sms, seen.multi_processor_count],
    }


def answers_of(which: str, gpu: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, gpu, f"--{which}"], check=True, capture_output=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main(arguments: list[str]) -> int:
    gpu = GPUS[arguments[0]]
    if arguments[1:] == ["--real"]:
        print(json.dumps({"answers": on_the_gpu(), "facts": device_facts(gpu), "name": torch.cuda.get_device_name()}))
        return 0
    if arguments[1:] == ["--dry"]:
        print(json.dumps({"answers": in_the_dry_run(gpu)}))
        return 0
    real, dry = answers_of("real", arguments[0]), answers_of("dry", arguments[0])
    rows = [
        {"case": case, "real": one, "dry": other, "agree": one == other}
        for case, one, other in zip(CASES, real["answers"], dry["answers"], strict=True)
    ]
    for row in rows:
        print("ok  " if row["agree"] else "DIFF", *row["case"], row["real"], "" if row["agree"] else row["dry"])
    refused = sum(row["real"]["refused"] for row in rows)
    agree = sum(row["agree"] for row in rows)
    facts = all(table == seen for table, seen in real["facts"].values())
    print(
        f"{real['name']}, torch {torch.__version__}, Triton {triton.__version__}: {agree} of {len(rows)} launches agree"
    )
    print(f"{refused} of them refused; the table's facts {'are' if facts else 'ARE NOT'} the GPU's: {real['facts']}")
    if len(arguments) > 1:
        Path(arguments[1]).write_text(
            json.dumps({"rows": rows, "facts": real["facts"], "name": real["name"]}, indent=1)
        )
    return 0 if agree == len(rows) and facts else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
