"""How much of a machine a compilation may use: memory, files at a time, weight against other programs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builder.engine import EngineFacts
    from builder.settings import Settings

LEAST = 1 << 30
KEPT_FREE = 1 << 30  # and a tenth of all, for what else runs
LOW_SHARES = 64  # of the engine's 1024: a sixteenth of a core against one other program, all of it against none


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """What one compilation may use. `memory` is in bytes, `jobs` how many files are compiled at a time at most."""

    memory: int
    jobs: int
    cpu_shares: int | None = None

    def jobs_for(self, unit: int) -> int:
        """Return how many files of `unit` bytes each are compiled at a time, one at least."""
        return max(1, min(self.memory // unit, self.jobs))


def effort_on(facts: EngineFacts, settings: Settings, *, free: int | None = None) -> Effort:
    """Return what a compilation on an engine may use: what the settings say, else what is free now and all cores.

    `free` is the free memory of the engine's machine in bytes, None where that is another machine than this.
    """
    memory = settings.memory or memory_for(facts.memory, facts.memory if free is None else free)
    shares = LOW_SHARES if settings.low_priority else None
    return Effort(memory=memory, jobs=settings.jobs or facts.cpus, cpu_shares=shares)


def memory_for(everything: int, free: int) -> int:
    """Return how many bytes a compilation may hold so that the machine stays usable."""
    return max(LEAST, free - max(KEPT_FREE, everything // 10))


def effort_here(settings: Settings) -> Effort:
    """Return what a compilation without a container may use: within the limit of a container that we run in."""
    total, free = _meminfo()
    limit = _own_limit()
    if limit is not None:
        total, free = min(total, limit), min(free, limit)
    shares = LOW_SHARES if settings.low_priority else None
    jobs = settings.jobs or len(os.sched_getaffinity(0))
    return Effort(memory=settings.memory or memory_for(total, free), jobs=jobs, cpu_shares=shares)


def free_memory(everything: int) -> int | None:
    """Return the bytes free here; None if an engine with `everything` bytes is on another machine."""
    total, available = _meminfo()
    return available if abs(total - everything) < everything // 20 else None


def _meminfo() -> tuple[int, int]:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    total, available = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return total, available


def _own_limit() -> int | None:
    """Return the memory limit of the control group that this process sees as its root (cgroups v2 and v1)."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        path = Path("/sys/fs/cgroup", name)
        if path.is_file() and (text := path.read_text(encoding="ascii").strip()).isdigit():
            return int(text)
    return None


def compile_user() -> tuple[int, int]:
    """Return the user and group that a compilation runs as: never root, and the owner of what it leaves behind."""
    return (65534, 65534) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
