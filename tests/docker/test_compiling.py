"""Compilations that run out of memory, are interrupted or fail: in containers, with a small package of the tests."""

from __future__ import annotations

import io
import json
import tarfile
import textwrap
import uuid
import zipfile
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from builder.build import benches
from builder.build.benches import ContainerBench
from builder.build.compiling import Workshop, build_wheel
from builder.build.effort import Effort
from builder.build.failing import FAILURE
from builder.build.image import ImageSettings, assemble, load_image
from builder.build.layers import make_base_layer
from builder.build.measuring import Measures, keep_measures, measures_of
from builder.build.wheels import WheelJob, built_wheel
from builder.document import tree_digest
from builder.errors import BuildFailedError
from builder.store import DiskFullError, Store
from tests.docker.python_rootfs import system_python, write_rootfs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.dockerd.client import DockerEngine

pytestmark = pytest.mark.docker

UNITS = 8
UNIT_BYTES = 48 << 20
FULL_MEMORY = 400 << 20  # for four units at a time

# Stands in for `python -m build`: the real one is not in this machine's Python.
FRONTEND = """
import runpy, sys
sys.argv = ["make_wheel.py", sys.argv[sys.argv.index("--outdir") + 1]]
runpy.run_path("make_wheel.py", run_name="__main__")
"""
# Compiles as ninja does: MAX_JOBS at a time, whole objects are kept, what runs is counted.
PACKAGE = """
import os, pathlib, shutil, subprocess, sys, zipfile
from concurrent.futures import ThreadPoolExecutor

out, objects = pathlib.Path(sys.argv[1]), pathlib.Path("objects")
objects.mkdir(exist_ok=True)
shutil.rmtree("holding", ignore_errors=True)
os.mkdir("holding")
pathlib.Path(".ninja_log").touch()
names = [f"unit{number}" for number in range(UNITS)]

def compile(name):
    if (objects / name).exists():
        return 0
    code = subprocess.run([sys.executable, "compiler.py", name, str(objects / name)]).returncode
    if code == -9:
        print("nvcc error : 'cicc' died due to signal 9 (Kill signal)", file=sys.stderr)
    elif code == 0:
        print(f"[{len(list(objects.iterdir()))}/{len(names)}] {name}", file=sys.stderr, flush=True)
    return code

with ThreadPoolExecutor(int(os.environ["MAX_JOBS"])) as pool:
    if any(pool.map(compile, names)):
        sys.exit("a unit failed")
with zipfile.ZipFile(out / "hungry-1.0-py3-none-any.whl", "w") as wheel:
    for name in names:
        wheel.writestr(zipfile.ZipInfo(name), (objects / name).read_bytes())
"""
# Holds its memory until as many of them hold theirs as are allowed at a time, or others must have been killed.
COMPILER = """
import os, pathlib, sys, time
memory = bytearray(UNIT_BYTES)
memory[::4096] = b"x" * len(memory[::4096])
pathlib.Path("holding", sys.argv[1]).touch()
for _ in range(250):
    if len(os.listdir("holding")) >= int(os.environ["MAX_JOBS"]):
        break
    time.sleep(0.02)
pathlib.Path(sys.argv[2]).write_text(f"object of {sys.argv[1]}")
"""


@dataclass(kw_only=True)
class Bench:
    """A store, an engine, a toolchain image without compilers, and what was said."""

    store: Store
    engine: DockerEngine
    image: str
    folder: Path
    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def job(self, *, compiler: str = COMPILER, package: str = PACKAGE) -> WheelJob:
        """Return the job of a package whose every unit holds UNIT_BYTES."""
        self.folder.mkdir(exist_ok=True)
        values = {"UNITS": str(UNITS), "UNIT_BYTES": str(UNIT_BYTES)}
        for name, text in (("make_wheel.py", package), ("compiler.py", compiler)):
            for word, value in values.items():
                text = text.replace(word, value)  # noqa: PLW2901
            (self.folder / name).write_text(text)
        return WheelJob(
            name="hungry",
            source=self.folder,
            source_digest=tree_digest(self.folder),
            environment=(("TORCH_CUDA_ARCH_LIST", "12.0"),),
            toolchain_key=self.image,
            script_digest="",
        )

    def shop(self, memory: int = FULL_MEMORY, jobs: int = 4, *, retry: bool = False) -> Workshop:
        return Workshop(
            bench=self.bench(Effort(memory=memory, jobs=jobs)),
            store=self.store,
            on_line=self.lines.append,
            warn=self.warnings.append,
            retry=retry,
        )

    def bench(self, effort: Effort) -> ContainerBench:
        cache = self.store.root / "ccache"
        return ContainerBench(toolchain=self.image, engine=self.engine, effort=effort, cache=cache)

    def learn(self, unit: int) -> None:
        """Let an earlier version of the package have measured this much for a unit."""
        keep_measures("0" * 64, Measures(name="hungry", unit_memory=unit), self.store)

    @property
    def compiled(self) -> list[str]:
        """The units that were compiled to their end, in order."""
        return [line.split()[1] for line in self.lines if line.startswith("[")]


@pytest.fixture(scope="module")
def toolchain(engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with this machine's Python and the stand-in for `build`."""
    folder = tmp_path_factory.mktemp("toolchain")
    write_rootfs(folder / "rootfs.tar")
    add_frontend(folder / "rootfs.tar")
    store, name = Store(folder / "store"), f"envbuild-test/toolchain:{uuid.uuid4().hex[:12]}"
    layer = make_base_layer(store.add(folder / "rootfs.tar"), store=store)
    image = assemble((layer,), ImageSettings(epoch=0, environment={"PATH": "/usr/bin"}))
    load_image(image, name, engine=engine, store=store)
    yield name
    engine.remove_image(name)


def add_frontend(rootfs: Path) -> None:
    python = f"python{system_python()}"
    link, main = tarfile.TarInfo("usr/bin/python3"), tarfile.TarInfo(f"usr/lib/{python}/build/__main__.py")
    link.type, link.linkname = tarfile.SYMTYPE, python
    main.size = len(FRONTEND)
    with tarfile.open(rootfs, "a") as archive:
        archive.addfile(link)
        archive.addfile(main, io.BytesIO(FRONTEND.encode()))


@pytest.fixture
def bench(toolchain: str, engine: DockerEngine, tmp_path: Path) -> Bench:
    return Bench(store=Store(tmp_path / "store"), engine=engine, image=toolchain, folder=tmp_path / "hungry")


def test_with_a_quarter_of_the_memory_a_build_that_would_be_killed_completes_with_fewer_jobs(bench: Bench) -> None:
    bench.learn(16 << 20)  # wrong, so that four are tried at once
    job = bench.job()
    whole = build_wheel(job, replace(bench.shop(), store=Store(bench.store.root / "other")))
    bench.lines.clear()
    wheel = build_wheel(job, bench.shop(FULL_MEMORY // 4))
    measured = measures_of(job.key, bench.store)
    assert measured is not None
    assert bench.warnings[0] == "hungry: the kernel killed a compiler for want of memory; it goes on with 2 at a time"
    assert measured.attempts == 1 + len(bench.warnings)
    assert measured.jobs < 4
    assert sorted(bench.compiled) == [f"unit{number}" for number in range(UNITS)]  # none of them twice
    assert wheel.sha256 == whole.sha256


def test_a_file_that_alone_needs_too_much_is_an_error_that_names_the_remedy_and_is_not_remembered(
    bench: Bench,
) -> None:
    job = bench.job()
    with pytest.raises(BuildFailedError, match=r"compiling hungry ran out of memory: one file alone") as caught:
        build_wheel(job, bench.shop(40 << 20))
    assert "ENVBUILD_MEMORY=1g" in caught.value.remedy
    assert bench.store.result(FAILURE, job.key) is None
    assert build_wheel(job, bench.shop()).filename == "hungry-1.0-py3-none-any.whl"


def test_what_was_learned_of_a_unit_bounds_the_jobs_of_the_next_version(bench: Bench) -> None:
    build_wheel(bench.job(), bench.shop(jobs=1))
    bench.lines.clear()
    build_wheel(bench.job(package=PACKAGE + "# 2\n"), bench.shop(200 << 20, jobs=8))
    found = [line for line in bench.lines if "at a time" in line]
    assert found == ["hungry: 3 at a time within 210 MB of memory"]
    assert bench.warnings == []


def test_an_interrupted_compilation_goes_on_with_its_object_files(bench: Bench) -> None:
    job = bench.job()

    def interrupt(line: str) -> None:
        bench.lines.append(line)
        if len(bench.compiled) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_wheel(job, replace(bench.shop(jobs=1), on_line=interrupt))
    before = bench.compiled
    bench.lines.clear()
    build_wheel(job, bench.shop(jobs=1))
    assert "going on with the object files of the last attempt" in bench.lines
    assert len(bench.compiled) in {UNITS - 3, UNITS - 4}  # the fourth may have been whole, or cut short
    assert {*before, *bench.compiled} >= {f"unit{number}" for number in range(3)}
    assert not {*before} & {*bench.compiled}
    assert not bench.store.unfinished(job.key).exists()
    said = (bench.store.root / "logs" / f"hungry-{job.key[:16]}.log").read_text()
    assert said.count(" at a time within ") == 2  # of both attempts


def test_a_compilation_that_takes_too_long_is_stopped_and_may_go_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = bench.job(compiler="import time; time.sleep(600)")
    monkeypatch.setattr(benches, "TIMEOUT", 2.0)
    with pytest.raises(BuildFailedError, match=r"was stopped after \d+ s") as caught:
        build_wheel(job, bench.shop(jobs=1))
    assert "it goes on" in caught.value.remedy
    assert bench.store.result(FAILURE, job.key) is None


def test_an_error_in_the_source_is_remembered_with_its_log_and_fails_at_once_until_it_is_retried(bench: Bench) -> None:
    job = bench.job(compiler="raise SystemExit('hungry.cu(7): error: expected a \";\"')")
    with pytest.raises(BuildFailedError, match=r"compiling hungry failed with exit code 1$") as first:
        build_wheel(job, bench.shop(jobs=1))
    log = bench.store.root / "logs" / f"hungry-{job.key[:16]}.log"
    assert str(log) in first.value.remedy
    assert 'expected a ";"' in log.read_text()
    assert any("expected" in line for line in first.value.evidence)
    bench.lines.clear()
    with pytest.raises(BuildFailedError, match="as it did before with exactly these inputs") as again:
        build_wheel(job, bench.shop())
    assert bench.lines == []
    assert "--retry" in again.value.remedy
    assert again.value.evidence == first.value.evidence
    with pytest.raises(BuildFailedError, match=r"failed with exit code 1$"):
        build_wheel(job, bench.shop(retry=True))
    assert bench.lines
    assert built_wheel(job, bench.store) is None


def test_a_full_disk_is_no_failure_of_the_source(bench: Bench) -> None:
    job = bench.job(compiler="raise OSError(28, 'No space left on device')")
    with pytest.raises(DiskFullError, match="no space is left"):
        build_wheel(job, bench.shop())
    assert bench.store.result(FAILURE, job.key) is None


def test_a_compilation_has_no_network_is_not_root_and_may_have_low_priority(bench: Bench) -> None:
    package = textwrap.dedent("""
        import json, os, pathlib, socket, sys, zipfile
        shares = pathlib.Path("/sys/fs/cgroup/cpu/cpu.shares")
        weight = pathlib.Path("/sys/fs/cgroup/cpu.weight")
        seen = {"uid": os.getuid(), "interfaces": [name for _, name in socket.if_nameindex()],
                "weight": int((shares if shares.exists() else weight).read_text())}
        with zipfile.ZipFile(sys.argv[1] + "/hungry-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("seen.json", json.dumps(seen))
    """)
    shop = replace(bench.shop(), bench=bench.bench(Effort(memory=FULL_MEMORY, jobs=1, cpu_shares=64)))
    wheel = build_wheel(bench.job(package=package), shop)
    with zipfile.ZipFile(bench.store.path(wheel.sha256)) as archive:
        seen = json.loads(archive.read("seen.json"))
    assert seen["uid"] != 0
    assert seen["interfaces"] == ["lo"]
    assert seen["weight"] < 100
