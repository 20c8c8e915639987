"""Where a wheel is compiled: in a container of the toolchain, or with the compilers and the Python of this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from builder import process
from builder.build import compile_source
from builder.build.effort import LOW_SHARES, compile_user
from builder.engine import ContainerRun, Exit, Mount
from builder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.build.effort import Effort
    from builder.build.wheels import WheelJob
    from builder.engine import Engine

SCRIPT = Path(compile_source.__file__)
TIMEOUT = 24 * 3600.0
CACHE_SIZE = "20G"
NEEDED = ("build", "setuptools", "wheel")
_FACTS = """
import importlib.metadata as m, json, platform, sys
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
facts = {name: version(name) for name in sys.argv[1:]}
if facts.get("torch"):
    import torch
    facts["torch-cuda"] = torch.version.cuda
facts["python"] = platform.python_version()
facts["machine"] = platform.machine()
print(json.dumps(facts))
"""


class Bench(Protocol):
    """A place to compile in. `effort` is what a compilation may use there."""

    @property
    def effort(self) -> Effort:
        """What a compilation may use."""
        ...

    def compile(self, job: WheelJob, tree: Path, work: Path, jobs: int, on_line: Callable[[str], None]) -> Exit:
        """Compile the tree of a job in a work folder, `jobs` files at a time, and return how that ended."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerBench:
    """The toolchain image: no network, not as root, a memory limit, fixed paths. `cache` is the folder of ccache."""

    toolchain: str
    engine: Engine
    effort: Effort
    cache: Path

    def compile(self, job: WheelJob, tree: Path, work: Path, jobs: int, on_line: Callable[[str], None]) -> Exit:
        """Compile in a container. Nothing in it that the job's key does not cover may change the wheel's bytes."""
        for folder in (work, self.cache):
            folder.mkdir(parents=True, exist_ok=True)
            if os.geteuid() == 0:
                os.chown(folder, *compile_user())
        user, group = compile_user()
        return self.engine.run(
            ContainerRun(
                image=self.toolchain,
                command=("python3", "/compile_source.py", "/source", "/build", job.subdirectory),
                environment={
                    "HOME": "/tmp",  # noqa: S108 - inside the container
                    "CCACHE_DIR": "/ccache",
                    "CCACHE_COMPILERCHECK": f"string:{job.cache_salt}",
                    "CCACHE_MAXSIZE": CACHE_SIZE,
                    **variables(job, jobs),
                },
                mounts=(
                    Mount(source=tree, target="/source"),
                    Mount(source=SCRIPT, target="/compile_source.py"),
                    Mount(source=work, target="/build", read_only=False),
                    Mount(source=self.cache, target="/ccache", read_only=False),
                ),
                tmpfs=("/tmp",),  # noqa: S108 - inside the container
                user=f"{user}:{group}",
                memory=self.effort.memory,
                cpu_shares=self.effort.cpu_shares,
                timeout=TIMEOUT,
                read_only_root=True,
            ),
            on_line,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class HostBench:
    """The machine itself: `python` with what the build needs, and the compilers in its PATH or $CUDA_HOME.

    Nothing limits the memory of such a compilation but the number of files at a time.
    """

    python: str
    effort: Effort

    def compile(self, job: WheelJob, tree: Path, work: Path, jobs: int, on_line: Callable[[str], None]) -> Exit:
        """Compile with the machine's own programs."""
        work.mkdir(parents=True, exist_ok=True)
        nice = ("nice", "-n", "19") if self.effort.cpu_shares == LOW_SHARES else ()
        start = time.monotonic()
        ended = process.run(
            (*nice, self.python, str(SCRIPT), str(tree), str(work), job.subdirectory),
            environment=variables(job, jobs),
            without=("CCACHE_DIR", "PYTHONPATH"),
            timeout=TIMEOUT,
            on_line=on_line,
        )
        code = 128 - ended.code if ended.code < 0 else ended.code
        seconds = time.monotonic() - start
        return Exit(code=code, stderr=ended.stdout + ended.stderr, timed_out=ended.timed_out, seconds=seconds)


def variables(job: WheelJob, jobs: int) -> dict[str, str]:
    """Return the variables of a compilation: those of the job, and how many files torch's and CMake's builds take."""
    return {"MAX_JOBS": str(jobs), "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs), **dict(job.environment)}


def host_toolchain(python: str, requires: tuple[str, ...]) -> dict[str, Any]:
    """Return the versions of what compiles on this machine; raise UsageError for a Python that does not.

    `requires` are the packages that the build asks of the Python.
    """
    names = sorted({*NEEDED, *requires})
    answer = process.run((python, "-c", _FACTS, *names), without=("PYTHONPATH",))
    try:
        facts: dict[str, Any] = json.loads(answer.stdout)
    except ValueError:
        raise UsageError(
            f"--here: {python} cannot say what packages it has",
            remedy="give a Python that has torch and `build`",
            evidence=tuple(answer.text.splitlines()[-10:]),
        ) from None
    missing = [name for name in names if facts[name] is None]
    if missing:
        raise UsageError(
            f"--here: {python} has no {', '.join(missing)}", remedy=f"{python} -m pip install {' '.join(missing)}"
        )
    return {**facts, "nvcc": _version(_nvcc(), "--version"), "c++": _version("c++", "-dumpfullversion")}


def _nvcc() -> str:
    home = os.environ.get("CUDA_HOME")
    return f"{home}/bin/nvcc" if home else "nvcc"


def _version(program: str, option: str) -> str | None:
    if shutil.which(program) is None:
        return None
    found = re.search(r"V?(\d+\.\d+\.\d+)\s*$", process.run((program, option)).text, re.MULTILINE)
    return found[1] if found else None
