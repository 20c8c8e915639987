"""The processes below one: found, named, signalled, collected; orphans come to the reaper."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

COMMAND_SHOWN = 200
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h


def become_reaper() -> None:
    """Make this process the parent of every orphan below it."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def below(root: int) -> list[int]:
    """Return the processes below a process, zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                if state not in {"Z", "X"}:
                    children.setdefault(int(parent), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        next_ones = children.get(waiting.pop(), [])
        found += next_ones
        waiting += next_ones
    return found


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone by now."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_below(root: int) -> list[int]:
    """Kill every process below one; return which there were."""
    found = below(root)
    for pid in found:
        send(pid, signal.SIGKILL)
    return found


def collect() -> None:
    """Collect what has ended and is nobody else's to wait for."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def command_of(pid: int) -> str:
    """Return the beginning of a process's command line, empty if it is gone."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return text.strip()[:COMMAND_SHOWN]
    return ""
