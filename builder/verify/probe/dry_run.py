"""Inside the image: the stack's own host code runs against a pretended GPU; the last line reports.

    python3 -m builder.verify.probe.dry_run FOLDER

FOLDER holds `request.json` and the libraries that play the GPU.

Each group of calls has a process of its own, because values on a pretended GPU are garbage: what hangs or runs out of
memory takes no other group along.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.verify.probe.pretence import with_gpu

if TYPE_CHECKING:
    from collections.abc import Sequence

TAIL_LINES = 12
WATCH_SECONDS = 0.5
PAGE = os.sysconf("SC_PAGE_SIZE")


def main(arguments: Sequence[str]) -> None:
    """Run all groups, two at a time, and print what they answered."""
    place = Path(arguments[0])
    request = json.loads((place / "request.json").read_bytes())
    with ThreadPoolExecutor(min(2, len(os.sched_getaffinity(0)))) as pool:
        groups = list(pool.map(lambda group: run_group(place, request, group["name"]), request["groups"]))
    sys.stdout.write("\n" + json.dumps({"groups": groups}) + "\n")


def run_group(place: Path, request: dict[str, Any], name: str) -> dict[str, Any]:
    """Run one group under its limits of time and memory, and return its lines, and how it ended if not well."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        answer, log = Path(folder) / "answer", Path(folder) / "log"
        variables = with_gpu(str(place / request["pretended"]), request["described"], str(log))
        process = subprocess.Popen(
            [sys.executable, "-m", "builder.verify.probe.dry_group", str(place), name, str(answer)],
            env={**os.environ, **variables, "TRITON_CACHE_DIR": f"{folder}/triton", **request["env"]},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        watch = Watch(process, seconds=request["seconds"], memory=request["memory"])
        tail = [line.decode(errors="replace").rstrip() for line in show(process)][-TAIL_LINES:]
        process.wait()
        watch.stop()
        lines = answer.read_text().splitlines() if answer.exists() else []
    return {
        "name": name,
        "seconds": round(time.monotonic() - start, 1),
        "ended": watch.reason or (f"exit code {process.returncode}" if process.returncode else None),
        "tail": tail if process.returncode else [],
        "lines": [json.loads(line) for line in lines],
    }


def show(process: subprocess.Popen[bytes]) -> list[bytes]:
    """Pass a process's errors on as they come, and return them."""
    lines = []
    for line in process.stderr or ():
        lines.append(line)
        sys.stderr.buffer.write(line)
        sys.stderr.flush()
    return lines


class Watch:
    """Ends a process group that takes more time (seconds) or memory (bytes) than it may, and says why."""

    def __init__(self, process: subprocess.Popen[bytes], *, seconds: float, memory: int) -> None:
        self.reason: str | None = None
        self._process, self._seconds, self._memory = process, seconds, memory
        self._done = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """Watch no longer."""
        self._done.set()

    def _run(self) -> None:
        end = time.monotonic() + self._seconds
        while not self._done.wait(WATCH_SECONDS):
            if time.monotonic() > end:
                self._kill(f"not done after {self._seconds:.0f} s")
            elif private_memory(self._process.pid) > self._memory:
                self._kill(f"more than {self._memory >> 20} MiB of memory: garbage values became sizes")

    def _kill(self, reason: str) -> None:
        self.reason = reason
        self._done.set()
        os.killpg(self._process.pid, signal.SIGKILL)


def private_memory(pid: int) -> int:
    """Return the memory of a process that no file backs, in bytes; 0 when it has ended."""
    try:
        resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * PAGE


if __name__ == "__main__":
    main(sys.argv[1:])
