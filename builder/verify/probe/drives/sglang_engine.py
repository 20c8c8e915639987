"""SGLang's own start-up, as far as it goes: options, model, memory, backends, then a prefill and a decode step.

One process and one GPU, the tiny model's sizes without its weights, no CUDA graphs.
"""

# ruff: noqa: PLC0415 - SGLang belongs to the stack under test
from __future__ import annotations

import importlib
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.verify.probe.drives.call import Call
from builder.verify.probe.drives.run_time import leave_out_cute_launches, leave_out_nvcc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROMPT, BATCH = 128, 2
SHOWN = ("quantization", "kv_cache_dtype", "page_size", "sampling_backend", "grammar_backend")


def calls(group: dict[str, Any]) -> Iterator[Call]:
    """Yield the steps of the start-up with the `arguments` of the server; `files` are those of the checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in group["files"].items():
            Path(folder, name).write_text(text)
        leave_out_nvcc()
        put_nvidia_smi(Path(folder))
        engine = Engine(["--model-path", folder, "--load-format", "dummy", *group["arguments"]])
        for name, step, reaches in (
            ("options", engine.read_options, False),
            ("model", engine.load, False),
            (f"prefill of {BATCH}x{PROMPT} tokens", engine.prefill, True),
            ("decode step", engine.decode, True),
        ):
            yield Call(name=f"engine {name}", run=partial(_with_small_values, step), decides=True, reaches=reaches)
            if not engine.goes_on:
                return


def put_nvidia_smi(folder: Path) -> None:
    """Put a program into the search path that says the GPU's memory in MiB, as sglang up to 0.5.9 must ask for it."""
    import torch

    program = folder / "nvidia-smi"
    mebibytes = torch.cuda.mem_get_info()[1] >> 20
    program.write_text(f'#!/bin/sh\ncase "$*" in *memory.total*) echo {mebibytes} ;; *) exit 1 ;; esac\n')
    program.chmod(0o755)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def _with_small_values(step: Callable[[], list[str]]) -> list[str]:
    from builder.verify.probe.drives.small_values import SmallValues

    with SmallValues():
        return step()


class Engine:
    """SGLang in this process, driven by the functions of its own benchmark of one batch."""

    def __init__(self, arguments: list[str]) -> None:
        self.goes_on = True
        self._arguments = arguments
        self._options: Any = None
        self._bench: Any = None
        self._runner: Any = None
        self._next: Any = None
        self._batch: Any = None

    def read_options(self) -> list[str]:
        """Let the server's own parser read the options and return what it makes of them on this GPU."""
        self.goes_on = False
        server = importlib.import_module("sglang.srt.server_args")
        self._options = server.prepare_server_args(self._arguments)
        if hasattr(server, "set_global_server_args_for_scheduler"):
            server.set_global_server_args_for_scheduler(self._options)
        self.goes_on = True
        return [", ".join(f"{name} {value}" for name, value in _chosen(self._options))]

    def load(self) -> list[str]:
        """Make the model with random weights, the memory pools and the attention backend."""
        self.goes_on = False
        self._bench = importlib.import_module("sglang.bench_one_batch")
        self._bench.get_tokenizer = lambda *_, **__: None
        leave_out_cute_launches()
        for name in [name for name in vars(self._bench) if name.startswith("initialize_")]:
            getattr(self._bench, name)(self._options)
        ports = self._bench.PortArgs.init_new(self._options)
        made, _ = self._bench.load_model(self._options, ports, 0, 0)
        self._runner = getattr(made, "torch_runner", made)
        self.goes_on = True
        return [f"model {_name(self._runner.model)}, attention {_name(self._runner.attn_backend)}"]

    def prefill(self) -> list[str]:
        """Run one prefill without a prefix."""
        self.goes_on = False
        requests = self._bench.prepare_synthetic_inputs_for_latency_test(BATCH, PROMPT, [[1] * PROMPT] * BATCH)
        self._next, _, self._batch = self._bench.extend(requests, self._runner)
        self.goes_on = True
        return []

    def decode(self) -> list[str]:
        """Run one decode step after the prefill."""
        self._bench.decode(self._next, self._batch, self._runner)
        return []


def _chosen(options: Any) -> list[tuple[str, Any]]:
    named = {name: value for name, value in vars(options).items() if name.endswith("_backend") or name in SHOWN}
    return sorted((name, value) for name, value in named.items() if value is not None)


def _name(value: object) -> str:
    return type(value).__name__
