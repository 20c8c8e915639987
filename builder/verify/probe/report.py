"""What a probe saw so far, printed as one line of JSON at the end, whatever the end is."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any

PACKAGES = (
    *("torch", "transformers", "safetensors", "tokenizers", "numpy", "triton"),
    *("sglang", "sglang-kernel", "sgl-kernel", "sgl-deep-gemm", "flashinfer-python", "flash-attn"),
)
TRACEBACK_LINES = 30


class Report:
    """Phases with their time, the exception that ended the probe, and what the probe adds to `values`."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"phase": "start", "error": None, "seconds": {}}
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
            sys.stderr.flush()

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
        """Print the report, with the time of the phase that was reached."""
        self.enter(self.values["phase"])
        self.values["versions"] = _versions()
        self.values["peak_memory_mib"] = round(_peak_kib() / 1024, 1)
        sys.stdout.write(json.dumps(self.values, sort_keys=True) + "\n")
        sys.stdout.flush()


def _peak_kib() -> int:
    """Return the most memory that this program has held; getrusage's figure would count the program that started it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that take part, as their metadata say."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
