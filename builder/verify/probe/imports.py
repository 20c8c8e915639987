"""Whether the modules of a distribution can be imported, each distribution in a Python of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from builder.verify.probe.files import normal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.verify.probe.files import Distribution

ANNOUNCEMENT = "envbuild imports "
# Says the name of each module before it is imported, so that a crash has a name too.
IMPORT_EACH = f"""
import importlib, sys
for name in sys.argv[1:]:
    print("\\n{ANNOUNCEMENT}" + name, flush=True)
    importlib.import_module(name)
"""
NOT_IMPORTED = {"test", "tests"}
# What the processes of a server import: the one that is started, and the one that computes on the GPU.
SERVERS = {"sglang": ("sglang.launch_server", "sglang.srt.managers.scheduler")}
TAIL_LINES = 8
NOTHING: dict[str, Any] = {"modules": [], "seconds": 0.0, "failed": None, "error": None, "tail": []}


def top_level_modules(distribution: Distribution) -> list[str]:
    """Return the public modules that a distribution installs, the one of its own name first."""
    names = set()
    for file in distribution.recorded or ():
        parts = file.name.split("/")
        if len(parts) == 1 and parts[0].endswith((".py", ".so")):
            names.add(parts[0].split(".")[0])
        elif len(parts) == 2 and parts[1] == "__init__.py":
            names.add(parts[0])
    public = {name for name in names if name.isidentifier() and not name.startswith("_")} - NOT_IMPORTED
    return sorted(public, key=lambda name: (normal(name) != distribution.name, name))


def try_import(
    name: str,
    found: Sequence[Distribution],
    timeout: float,
    *,
    on: str = "cpu",
    variables: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Import the modules of a distribution in a fresh Python, as a user would: without this probe in its path.

    `on` says what the process finds: no GPU (`cpu`), or a pretended one (`gpu`); `variables` are how it does.
    """
    distribution = next((one for one in found if one.name == normal(name)), None)
    modules = top_level_modules(distribution) if distribution is not None else []
    known = {"distribution": name, "on": on}
    if distribution is None:
        return {**known, **NOTHING, "failed": name, "error": "not installed"}
    return {**known, **import_modules(modules, timeout, variables)}


def import_server(engine: str, timeout: float, variables: dict[str, str]) -> dict[str, Any]:
    """Import what the processes of a server import, on a pretended GPU: `variables` are its and the server's own."""
    modules = SERVERS.get(engine, ())
    known = {"distribution": engine, "on": "gpu", "server": True}
    return {**known, **import_modules(modules, timeout, variables)}


def import_modules(modules: Sequence[str], timeout: float, variables: dict[str, str] | None) -> dict[str, Any]:
    """Import modules one after the other in a fresh Python and return which of them failed, if any, and how."""
    answer = {**NOTHING, "modules": list(modules)}
    if not modules:
        return answer
    start = time.monotonic()
    error, out, err = run_python(["-c", IMPORT_EACH, *modules], timeout, variables)
    answer["seconds"] = round(time.monotonic() - start, 2)
    if error is None:
        return answer
    return {**answer, "failed": last_announced(out), "error": error, "tail": tail_of(err)}


def run_python(
    arguments: Sequence[str], timeout: float, variables: dict[str, str] | None = None
) -> tuple[str | None, bytes, bytes]:
    """Run this Python and return how it failed (None: it did not), its output and its errors.

    `variables` come on top of this process's own; an LD_LIBRARY_PATH among them goes before it.
    """
    own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    added = dict(variables or {})
    if "LD_LIBRARY_PATH" in added and own.get("LD_LIBRARY_PATH"):
        added["LD_LIBRARY_PATH"] += ":" + own["LD_LIBRARY_PATH"]
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd="/",
        env={**own, **added},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return f"not done after {timeout:.0f} s", *process.communicate()
    return ending(process.returncode, err), out, err


def ending(code: int, err: bytes) -> str | None:
    """Return how an import failed: its exception, or the signal that ended it; None: it did not."""
    if code == 0:
        return None
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return next(iter(reversed(tail_of(err))), f"exit code {code}")


def last_announced(out: bytes) -> str:
    """Return the module that was being imported."""
    lines = out.decode(errors="replace").splitlines()
    announced = [line.removeprefix(ANNOUNCEMENT) for line in lines if line.startswith(ANNOUNCEMENT)]
    return announced[-1] if announced else "python3"


def tail_of(err: bytes) -> list[str]:
    """Return the last lines of an output that are not empty."""
    lines = [line.rstrip() for line in err.decode(errors="replace").splitlines()]
    return [line for line in lines if line][-TAIL_LINES:]
