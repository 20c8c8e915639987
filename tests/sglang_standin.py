"""A server with sglang's HTTP interface that knows the right answers and one way to misbehave.

    python sglang_standin.py --port N --answers FILE [--misbehave NAME] [server options, ignored]

FILE holds `answers`: entries {prompt, tokens, margins}; a prompt that begins like none of them gets zeros.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CUDA = """\
/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:111: operator(): block: [0,0,0], thread: [3,0,0] Assertion \
`-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.
Traceback (most recent call last):
  File "/opt/env/lib/python3.12/site-packages/sglang/srt/managers/{file}", line {line}, in {function}
RuntimeError: CUDA error: device-side assert triggered
"""


def option(name: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


MISBEHAVIOUR = option("--misbehave")
ANSWERS = json.loads(Path(option("--answers")).read_text())["answers"]
COUNTS: dict[tuple[int, ...], int] = {}
DECODED: list[bool] = []  # whether each request that was made asked for more than the token of the prefill


def log(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def die(text: str) -> None:
    log(text)
    os._exit(1)


DEATHS = {
    "import": "ModuleNotFoundError: No module named 'sgl_kernel'",
    "load": "RuntimeError: The size of tensor a (3072) must match the size of tensor b (6144)",
    "capture": "RuntimeError: TllmGenFmhaRunner: Unsupported architecture",
}


def reach(phase: str) -> None:
    if f"dies at {phase}" == MISBEHAVIOUR:
        die(DEATHS[phase])


def start() -> None:
    """What happens before the port is open."""
    if MISBEHAVIOUR == "ignores SIGTERM":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    reach("import")
    log("Load weight begin. avail mem=139.00 GB")
    reach("load")
    if MISBEHAVIOUR == "a weight without a place":
        log("Parameter model.layers.1.mlp.gate.weight not found in params_dict")
    log("Load weight end. mem usage=0.2 GB")
    log("Capture target decode CUDA graph begin. avail mem=100 GB")
    reach("capture")
    if MISBEHAVIOUR in {"leaves children behind", "children, never ready"}:
        for _ in range(2):
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    if MISBEHAVIOUR == "compiles, never ready":
        subprocess.Popen(["bash", "-c", "exec -a nvcc sleep 600"])
    if MISBEHAVIOUR.endswith("never ready"):
        time.sleep(600)
    if MISBEHAVIOUR == "gigabytes of log":
        block = ("x" * 119 + "\n") * 8000
        for _ in range(int(option("--blocks"))):
            sys.stderr.write(block)
        log("RuntimeError: said at the end")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path in {"/health", "/health_generate"}:
            self.answer({})
        elif self.path == option("--info", "/server_info"):
            self.answer(
                {
                    "version": "0.5.14",
                    "model_path": "/another" if MISBEHAVIOUR == "a foreign server" else option("--model-path"),
                    "attention_backend": "dsa" if MISBEHAVIOUR == "another backend" else "flashinfer",
                    "kv_cache_dtype": "bfloat16",
                    "max_total_num_tokens": 4096,
                    "internal_states": [{"memory_usage": {"weight": 1}, "last_gen_throughput": 2.0}],
                }
            )
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt, count = tuple(asked["input_ids"]), asked["sampling_params"]["max_new_tokens"]
        assert (asked["top_logprobs_num"], asked["sampling_params"]["ignore_eos"]) == (2, True)
        DECODED.append(count > 1)
        known = next((one for one in ANSWERS if tuple(one["prompt"]) == prompt), None)
        tokens = list(known["tokens"]) if known else [0] * count
        margins: list[float | None] = list(known["margins"]) if known else [1.0] * count
        if known:
            COUNTS[prompt] = COUNTS.get(prompt, 0) + 1
            tokens, margins = misbehave(ANSWERS.index(known), COUNTS[prompt], tokens, margins)
        self.answer(answer_of(tokens[:count], margins[:count]))

    def answer(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


Answer = tuple[list[int], list[float | None]]


def misbehave(place: int, time_asked: int, tokens: list[int], margins: list[float | None]) -> Answer:
    if MISBEHAVIOUR == "dies at first decode":
        log(CUDA.format(file="scheduler_output_processor_mixin.py", line=377, function="process_batch_result_decode"))
        os._exit(-signal.SIGABRT & 255)
    if MISBEHAVIOUR == "device assert":
        blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1" and "--disable-cuda-graph" in sys.argv
        where = ("topk.py", 91, "select") if blocking else ("scheduler.py", 377, "process_batch_result_decode")
        die(CUDA.format(file=where[0], line=where[1], function=where[2]))
    if MISBEHAVIOUR == "hangs if judged before it decoded" and DECODED.count(True) == 1:
        time.sleep(600)
    if MISBEHAVIOUR == "hangs at decode":
        subprocess.Popen(["bash", "-c", "exec -a nvcc sleep 600"])
        time.sleep(600)
    wrong = [token + 1 for token in tokens]
    answers: dict[str, Answer] = {
        "garbage": (wrong, margins),
        "one token": (tokens[:1], margins[:1]),
        "healed NaN": ([0] * len(tokens), [0.0] * len(tokens)),
        "NaN": (tokens, [float("nan")] * len(tokens)),
        "weak": (tokens, [margin and margin / 2 for margin in margins]),
        "wrong second": (wrong if place == 1 else tokens, margins),
        "wrong when repeated": (wrong if time_asked > 1 else tokens, margins),
    }
    return answers.get(MISBEHAVIOUR, (tokens, margins))


def answer_of(tokens: list[int], margins: list[float | None]) -> dict[str, Any]:
    if MISBEHAVIOUR == "another interface":
        return {"choices": []}
    chosen = [[-0.01, token, None] for token in tokens]
    best = [
        [[-0.01, token, None], [None if margin is None else -0.01 - margin, token + 1, None]]
        for token, margin in zip(tokens, margins, strict=True)
    ]
    meta = {"output_token_logprobs": chosen, "output_top_logprobs": best, "completion_tokens": len(tokens)}
    return {"output_ids": tokens, "meta_info": meta}


if __name__ == "__main__":
    start()
    server = ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Handler)
    log("The server is fired up and ready to roll!")
    server.serve_forever()
