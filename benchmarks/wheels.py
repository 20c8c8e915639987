"""What compiling a package costs with envbuild, against its bare compile commands, `pip wheel` and fromager.

Needs an engine, and a Python (--python) with build, setuptools, wheel, fromager and the CUDA toolkit's wheels.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import functools
import http.server
import importlib
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from uv import find_uv_bin

from builder.build.benches import ContainerBench, HostBench
from builder.build.compiling import Workshop, build_wheel
from builder.build.effort import Effort
from builder.build.foundation import toolchain_image
from builder.build.measuring import measures_of
from builder.build.wheels import built_wheel
from builder.build.wheelstage import wheel_jobs
from builder.console import Console
from builder.dockerd.client import connect
from builder.lock.stage import locked_recipe
from builder.recipe.source import read_recipe
from builder.settings import settings_from
from builder.store import Store
from builder.tools import Tools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.build.benches import Bench
    from builder.build.wheels import WheelJob

PROJECT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
COLD, CACHED, WARM = 1.1, 0.2, 0.1
UNITS = 3
ARCHITECTURES = "9.0;12.0"
UNIT = """
template <int N> __global__ void kernel_N(float* x, const float* y) {
    float a[8] = {0};
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) a[j] = fmaf(a[(j + 1) % 8], y[threadIdx.x * N + i * 8 + j], float(i + j));
#pragma unroll
    for (int j = 0; j < 8; ++j) x[threadIdx.x * 8 + j] = a[j];
}
template <int N> void launch_N(float* x, const float* y) {
    kernel_N<N><<<1, 32>>>(x, y);
    if constexpr (N > 1) launch_N<N - 1>(x, y);
}
extern "C" void run_N(float* x, const float* y) { launch_N<32>(x, y); }
"""


class Took(NamedTuple):
    """Seconds on the wall, and of processors."""

    wall: float
    cpu: float


def package_in(folder: Path) -> Path:
    """Make a copy of the quickstart's kernels with more and larger units, and return it."""
    kernels = folder / "recipes" / "quickstart" / "kernels"
    for name in ("recipes", "lockfiles"):
        shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    names = ["csrc/nvfp4.cu", *(f"csrc/unit{number}.cu" for number in range(UNITS))]
    for number, name in enumerate(names[1:]):
        (kernels / name).write_text(UNIT.replace("_N", f"_{number}"))
    setup = kernels / "setup.py"
    setup.write_text(setup.read_text().replace('["csrc/nvfp4.cu"]', json.dumps(names)))
    return kernels


def bare(kernels: Path) -> list[list[str]]:
    """Return the package's own commands of nvcc and g++."""
    sys.path.insert(0, str(kernels))
    nvcc = importlib.import_module("nvcc")

    home = nvcc.toolkit(os.environ)
    sources = sorted(path.relative_to(kernels).as_posix() for path in kernels.glob("csrc/*.cu"))
    objects = [Path(source).with_suffix(".o") for source in sources]
    compiles = [
        nvcc.compile_command(home, source, target, ARCHITECTURES)
        for source, target in zip(sources, objects, strict=True)
    ]
    return [*compiles, nvcc.link_command(home, objects, Path("libnvfp4.so"))]


def index_in(kernels: Path, python: str) -> Path:
    """Make a folder that fromager takes for an index: the package's sdist, and wheels of what its build requires."""
    index = kernels / "index"
    run([python, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(index / "nvfp4-kernels"), "."], kernels)
    for name in ("setuptools", "wheel", "packaging"):
        run([python, "-m", "pip", "download", "-q", "--no-deps", "-d", str(index / name), name], kernels)
    return index


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine alone and give its address."""
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def run(command: list[str], folder: Path) -> None:
    """Run a program quietly; its failure is the benchmark's."""
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command[:4])} failed:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")


def run_all(commands: list[list[str]], folder: Path) -> None:
    """Run programs one after the other."""
    for command in commands:
        run(command, folder)


def took(work: Callable[[], object]) -> Took:
    """Return what some work took: on the wall, and of the processors that its programs used."""
    start, used = time.perf_counter(), cpu()
    work()
    return Took(time.perf_counter() - start, cpu() - used)


def cpu() -> float:
    """Return the seconds of processors that ended children took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def job_of(folder: Path) -> WheelJob:
    """Return the compile job of the package."""
    source = read_recipe(folder / "recipes" / "quickstart.yaml")
    (job,) = wheel_jobs(source, locked_recipe(source), Store(folder / "plan"))
    return job


def compiled(job: WheelJob, bench: Bench, store: Store) -> Took:
    """Compile a job in a store that does not have it and return what that took, by its own measures."""
    start = time.perf_counter()
    build_wheel(job, Workshop(bench=bench, store=store, on_line=lambda _: None, warn=print))
    measured = measures_of(job.key, store)
    return Took(time.perf_counter() - start, measured.cpu_seconds if measured else 0.0)


def on_this_machine(folder: Path, kernels: Path, python: str) -> dict[str, Took]:
    """Return what one run of each takes that compiles without a container."""
    commands, index = bare(kernels), index_in(kernels, python)
    wheel = [python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--no-index"]
    mine = HostBench(python=python, effort=Effort(memory=8 << 30, jobs=1))
    found = {
        "bare": took(lambda: run_all(commands, kernels)),
        "pip wheel": took(lambda: run([*wheel, "-w", str(folder / "out"), "."], fresh_copy(kernels))),
        "envbuild --here": compiled(job_of(folder), mine, Store(folder / "here")),
    }
    with served(index) as address:
        command = [python, "-m", "fromager", "--no-network-isolation", "build", "--wheel-server-url", address]
        found["fromager"] = took(lambda: run([*command, "nvfp4-kernels", "0.1.0", address], folder))
    return found


def fresh_copy(kernels: Path) -> Path:
    """Return a copy of the package in which nothing was compiled."""
    copy = kernels.with_name(f"copy-{time.monotonic_ns()}")
    shutil.copytree(kernels, copy, ignore=shutil.ignore_patterns("*.o", "*.so", "index", "build"))
    return copy


def in_containers(folder: Path) -> dict[str, Took]:
    """Return what one run takes without the compilers' cache, with it, and with the wheel in the store."""
    source, settings = read_recipe(PROJECT / "recipes" / "quickstart.yaml"), settings_from()
    engine = connect(settings)
    tools = Tools(settings=settings, store=Store(settings.store), console=Console(), connect=lambda: engine)
    bench = ContainerBench(
        toolchain=toolchain_image(source, locked_recipe(source), tools),
        engine=engine,
        effort=Effort(memory=8 << 30, jobs=1),
        cache=folder / "cache",
    )
    job, store = job_of(folder), Store(folder / "one")
    cold = compiled(job, bench, store)
    cached = compiled(job, bench, Store(folder / "two"))
    start, used = time.perf_counter(), time.process_time()
    found = built_wheel(job_of(folder), store)
    warm = Took(time.perf_counter() - start, time.process_time() - used)
    return {"cold": cold, "cached": cached, "warm": warm} if found else sys.exit("the wheel is not found")


def best(runs: list[dict[str, Took]]) -> dict[str, Took]:
    """Return the least of each over some runs."""
    return {name: Took(*(min(values) for values in zip(*(one[name] for one in runs), strict=True))) for name in runs[0]}


def record(name: str, compared: str, peer: str, ratio: float, goal: str, *, met: bool) -> None:
    """Write one record."""
    value = {
        "name": "wheels",
        "compared": compared,
        "peer": peer.partition(" (")[0],
        "peer_version": peer.partition(" (")[2].rstrip(")"),
        "ratio": round(ratio, 2),
        "goal": goal,
        "met": met,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }
    (RESULTS / f"wheels-{name}.json").write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(f"{value['compared']}: {value['ratio']} of {value['peer']}\n")


def write_records(found: dict[str, Took], versions: dict[str, str]) -> None:
    """Write what was seen: ratios are of processor time where both compile, as other programs share the machine."""
    mine = found["envbuild --here"].cpu
    peers = (
        ("bare", "nvcc and g++ alone (CUDA 13.1)", COLD),
        ("pip wheel", f"pip wheel (pip {versions['pip']})", COLD),
        ("fromager", f"fromager (fromager {versions['fromager']})", 1.0),
    )
    for name, peer, goal in peers:
        theirs = found[name].cpu
        compared = f"{UNITS + 1} CUDA files, cold: {mine:.1f} s of processors against {theirs:.1f} s"
        ratio = mine / theirs
        record(name.split()[0], compared, peer, ratio, f"at most {goal} times the peer", met=ratio <= goal)
    cold, cached, warm = found["cold"], found["cached"], found["warm"]
    ratio = cached.cpu / cold.cpu
    compared = (
        f"other store, same compilers' cache: {cached.cpu:.1f} s of processors against {cold.cpu:.1f} s, in containers"
    )
    record("cached", compared, "envbuild itself (cold)", ratio, f"at most {CACHED} times cold", met=ratio <= CACHED)
    compared = f"same key: {warm.cpu:.3f} s of the processor ({warm.wall:.3f} s in all) against {cold.cpu:.1f} s"
    record("warm", compared, "envbuild itself (cold)", warm.cpu / cold.cpu, f"under {WARM} s", met=warm.cpu < WARM)


def main() -> None:
    """Measure, print the ratios and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="a Python with build, setuptools, wheel, fromager and nvcc")
    parser.add_argument("--runs", type=int, default=2)
    arguments = parser.parse_args()
    os.environ["PATH"] += (
        f":{Path(find_uv_bin()).parent}:{Path(arguments.python).parent}"  # fromager calls uv and wheel
    )
    os.environ |= {"TORCH_CUDA_ARCH_LIST": ARCHITECTURES, "SOURCE_DATE_EPOCH": "1764000000"}
    runs = []
    for _ in range(arguments.runs):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            kernels = package_in(folder)
            runs.append({**on_this_machine(folder, kernels, arguments.python), **in_containers(folder)})
            sys.stdout.write(f"{runs[-1]}\n")
    script = "import importlib.metadata as m; print(m.version('pip'), m.version('fromager'))"
    answer = subprocess.run([arguments.python, "-c", script], capture_output=True, text=True, check=True)
    write_records(best(runs), dict(zip(("pip", "fromager"), answer.stdout.split(), strict=True)))


if __name__ == "__main__":
    main()
