"""Who owns a container: the envbuild process that made it, named so that a dead owner is known for sure."""

from __future__ import annotations

import os
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STATE, _START = 0, 19  # fields of /proc/PID/stat after the name, see proc(5): the state, the start in clock ticks


def own_name() -> str:
    """Return the name of this process: `BOOT/PID-NAMESPACE/PID/START`, never used twice."""
    pid = os.getpid()
    return f"{_world()}/{pid}/{_stat(pid)[_START]}"


def is_local(owner: str) -> bool:
    """Say whether the owner lived in this boot and this pid namespace, so that its pid means something here."""
    return owner.rsplit("/", 2)[0] == _world()


def is_dead(owner: str) -> bool:
    """Say whether a local owner has ended; a pid that another process has taken over counts as ended."""
    _, pid, start = owner.rsplit("/", 2)
    try:
        os.kill(int(pid), 0)
        fields = _stat(int(pid))
    except PermissionError:
        return False
    except (ProcessLookupError, FileNotFoundError):
        return True
    return fields[_START] != start or fields[_STATE] in "ZX"


def _world() -> str:
    return f"{_BOOT.read_text().strip()}/{Path('/proc/self/ns/pid').readlink().name.strip('pid:[]')}"


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
