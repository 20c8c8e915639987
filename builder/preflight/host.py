"""What this machine is: driver, GPUs, memory, /dev/shm, disk, limits; read once, as frozen values."""

from __future__ import annotations

import os
import re
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.process import MissingProgramError, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from builder.process import Completed

QUERY = ("nvidia-smi", "--query-gpu=name,compute_cap,memory.total,driver_version", "--format=csv,noheader")
TOOLKIT = ("nvidia-ctk", "--version")
SHM = Path("/dev/shm")  # noqa: S108 - its size is the question
TIMEOUT = 20.0
_MIB = 1 << 20
_CUDA = re.compile(r"CUDA Version\s*:\s*(\d+\.\d+)")
_TOOLKIT_VERSION = re.compile(r"version (\d+\.\d+\.\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class HostGpu:
    """One GPU as the driver reports it; `memory` is in bytes, None where the GPU shares the host's memory."""

    product: str
    capability: str
    memory: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFacts:
    """One machine: sizes in bytes; `driver` is None without an NVIDIA driver, `driver_problem` says why it is silent.

    `locked_memory` is the limit of memory that a process may lock (None: no limit).
    """

    gpus: tuple[HostGpu, ...]
    driver: str | None
    driver_problem: str
    driver_cuda: str | None
    container_toolkit: str | None
    cores: int
    memory: int
    memory_free: int
    shm: int
    disk_free: int
    open_files: int
    locked_memory: int | None


def host_facts(folder: Path, runner: Callable[[Sequence[str]], Completed] | None = None) -> HostFacts:
    """Read the facts of this machine; `folder` is where the store is or will be. Nothing is changed."""
    ask = runner or _run
    gpus, driver, problem = _query_gpus(ask)
    banner = _answer(ask, ("nvidia-smi",)) if driver else None
    memory, free = parse_meminfo(Path("/proc/meminfo").read_text(encoding="ascii"))
    return HostFacts(
        gpus=gpus,
        driver=driver,
        driver_problem=problem,
        driver_cuda=parse_driver_cuda(banner.text) if banner else None,
        container_toolkit=parse_toolkit(_answer(ask, TOOLKIT)),
        cores=len(os.sched_getaffinity(0)),
        memory=memory,
        memory_free=free,
        shm=_total(SHM),
        disk_free=shutil.disk_usage(existing(folder)).free,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        locked_memory=_limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
    )


def parse_gpus(text: str) -> tuple[tuple[HostGpu, ...], str | None]:
    """Return the GPUs and the driver in the answer to QUERY; lines that are no GPU are left out."""
    gpus: list[HostGpu] = []
    driver = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 4 or not re.fullmatch(r"\d+\.\d+", cells[1]):
            continue
        gpus.append(HostGpu(product=cells[0], capability=cells[1], memory=_mebibytes(cells[2])))
        driver = cells[3]
    return tuple(gpus), driver


def parse_driver_cuda(text: str) -> str | None:
    """Return the CUDA version in the banner of `nvidia-smi`: what the driver is native to, not a toolkit."""
    found = _CUDA.search(text)
    return found.group(1) if found else None


def parse_toolkit(answer: Completed | None) -> str | None:
    """Return the version of NVIDIA's container toolkit, or None without one."""
    found = _TOOLKIT_VERSION.search(answer.text) if answer else None
    return found.group(1) if found else None


def parse_meminfo(text: str) -> tuple[int, int]:
    """Return all memory and the memory that is available, in bytes, from the text of /proc/meminfo."""
    lines = {name: value.split() for name, _, value in (line.partition(":") for line in text.splitlines())}
    return int(lines["MemTotal"][0]) * 1024, int(lines["MemAvailable"][0]) * 1024


def _query_gpus(ask: Callable[[Sequence[str]], Completed]) -> tuple[tuple[HostGpu, ...], str | None, str]:
    answer = _answer(ask, QUERY)
    if answer is None:
        return (), None, "nvidia-smi is not installed"
    if answer.code != 0:
        last = answer.text.strip().splitlines()[-1:] or ["nothing was printed"]
        return (), None, f"nvidia-smi ended with code {answer.code}: {last[0]}"
    gpus, driver = parse_gpus(answer.stdout.decode(errors="replace"))
    return gpus, driver, "" if gpus else "nvidia-smi names no GPU"


def _answer(ask: Callable[[Sequence[str]], Completed], command: Sequence[str]) -> Completed | None:
    try:
        return ask(command)
    except MissingProgramError:
        return None


def _run(command: Sequence[str]) -> Completed:
    return run(command, timeout=TIMEOUT)


def _mebibytes(cell: str) -> int | None:
    number = cell.removesuffix(" MiB")
    return int(number) * _MIB if number.isdigit() else None


def _total(path: Path) -> int:
    return shutil.disk_usage(path).total if path.is_dir() else 0


def existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that is there."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value
