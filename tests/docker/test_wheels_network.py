"""The project's kernels compiled for real: the same bytes anywhere, any day, with and without the compilers' cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from uv import find_uv_bin

from builder.build.benches import ContainerBench
from builder.build.compiling import Workshop, build_wheel
from builder.build.effort import Effort
from builder.build.foundation import toolchain_image
from builder.build.measuring import measures_of
from builder.build.wheelscan import scan_wheel
from builder.build.wheelstage import wheel_jobs
from builder.console import Console
from builder.fatbin import device_code
from builder.lock.stage import locked_recipe
from builder.recipe.source import read_recipe
from builder.settings import settings_from
from builder.store import Store
from builder.tools import Tools

if TYPE_CHECKING:
    from builder.build.wheels import BuiltWheel, WheelJob
    from builder.engine import Engine

pytestmark = [pytest.mark.docker, pytest.mark.network]

PROJECT = Path(__file__).parents[2]
DAYS = 10 * 86400.0
LISTED = re.compile(r"(?:ELF|PTX) file +\d+: .*\.(sm_\d+[af]?)\.(?:cubin|ptx)$", re.MULTILINE)


@dataclass(kw_only=True)
class Kernels:
    """A copy of the quickstart with its kernels, and the engine with its toolchain."""

    folder: Path
    engine: Engine
    toolchain: str

    def job(self, **environment: str) -> WheelJob:
        source = read_recipe(self.folder / "recipes" / "quickstart.yaml")
        (job,) = wheel_jobs(source, locked_recipe(source), Store(self.folder / "store"))
        return replace(job, environment=tuple(sorted({**dict(job.environment), **environment}.items())))

    def build(self, job: WheelJob, store: Store, cache: Path) -> tuple[BuiltWheel, int, int]:
        """Return the wheel, and how many files the cache had and had not."""
        bench = ContainerBench(
            toolchain=self.toolchain, engine=self.engine, effort=Effort(memory=2 << 30, jobs=1), cache=cache
        )
        shop = Workshop(bench=bench, store=store, on_line=lambda _: None, warn=pytest.fail)
        wheel = build_wheel(job, shop)
        measured = measures_of(job.key, store)
        assert measured is not None
        return wheel, measured.cache_hits, measured.cache_misses


@pytest.fixture(scope="module")
def toolchain(engine: Engine) -> str:
    """The tag of the quickstart's toolchain, which stays on the machine as it does for a user."""
    source, settings = read_recipe(PROJECT / "recipes/quickstart.yaml"), settings_from()
    tools = Tools(settings=settings, store=Store(settings.store), console=Console(), connect=lambda: engine)
    return toolchain_image(source, locked_recipe(source), tools)


def kernels_in(folder: Path, engine: Engine, toolchain: str, *, age: float = 0.0) -> Kernels:
    """Copy the quickstart to a folder, its files as old as `age` seconds."""
    for name in ("recipes", "lockfiles"):
        shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (folder / "recipes").rglob("*"):
        os.utime(path, (path.stat().st_atime - age, path.stat().st_mtime - age))
    return Kernels(folder=folder, engine=engine, toolchain=toolchain)


def test_clean_builds_at_other_paths_and_of_other_days_are_one_wheel(
    tmp_path: Path, engine: Engine, toolchain: str
) -> None:
    here = kernels_in(tmp_path / "here", engine, toolchain)
    there = kernels_in(tmp_path / "there" / "deeper", engine, toolchain, age=DAYS)
    one, hits, misses = here.build(here.job(), Store(tmp_path / "one"), tmp_path / "cache-one")
    two, *_ = there.build(there.job(), Store(tmp_path / "two"), tmp_path / "cache-two")
    assert (hits, misses) == (0, 1)
    assert here.job().key == there.job().key
    assert one.sha256 == two.sha256


def test_the_cache_serves_other_jobs_and_changes_no_byte(tmp_path: Path, engine: Engine, toolchain: str) -> None:
    kernels, cache = kernels_in(tmp_path / "here", engine, toolchain), tmp_path / "cache"
    cold, *counted = kernels.build(kernels.job(), Store(tmp_path / "one"), cache)
    assert counted == [0, 1]
    warm, *counted = kernels.build(kernels.job(), Store(tmp_path / "two"), cache)
    assert counted == [1, 0]
    assert warm.sha256 == cold.sha256
    python = kernels.folder / "recipes/quickstart/kernels/nvfp4_kernels/__init__.py"
    python.write_text(python.read_text() + "# another wheel of the same kernels\n")
    other, *counted = kernels.build(kernels.job(), Store(tmp_path / "three"), cache)
    assert counted == [1, 0]
    assert other.sha256 != cold.sha256


def test_flags_that_nvcc_takes_unseen_are_not_confused_by_the_cache(
    tmp_path: Path, engine: Engine, toolchain: str
) -> None:
    kernels, cache = kernels_in(tmp_path / "here", engine, toolchain), tmp_path / "cache"
    plain, *_ = kernels.build(kernels.job(), Store(tmp_path / "one"), cache)
    job = kernels.job(NVCC_APPEND_FLAGS="-Xptxas=-O1")
    flagged, *counted = kernels.build(job, Store(tmp_path / "two"), cache)
    assert counted == [0, 1]
    assert flagged.sha256 != plain.sha256


def test_the_scan_agrees_with_cuobjdump(tmp_path: Path, engine: Engine, toolchain: str) -> None:
    kernels = kernels_in(tmp_path / "here", engine, toolchain)
    store = Store(tmp_path / "store")
    wheel, *_ = kernels.build(kernels.job(), store, tmp_path / "cache")
    (scanned,) = scan_wheel(store.path(wheel.sha256), wheel.filename, store).libraries
    assert scanned.labels == {"sm_90": 1, "sm_120": 1}
    install = [
        find_uv_bin(),
        "pip",
        "install",
        "-q",
        "--target",
        str(tmp_path / "cuda"),
        "nvidia-cuda-cuobjdump==13.2.*",
    ]
    subprocess.run(install, check=True)
    (cuobjdump,) = (tmp_path / "cuda").rglob("bin/cuobjdump")
    cuobjdump.chmod(0o755)
    for library in [*(PROJECT / "tests/cases/fatbin").glob("*.so")]:
        said = "".join(
            subprocess.run([cuobjdump, option, library], capture_output=True, text=True, check=False).stdout
            for option in ("--list-elf", "--list-ptx")
        )
        read = Counter(code.label.replace("compute_", "sm_") for code in device_code(library) or ())
        # It prints machine code for a family as that of the plain architecture: only the flag in the header tells.
        plain = Counter({label.removesuffix("f"): 0 for label in read})
        for label, count in read.items():
            plain[label.removesuffix("f")] += count
        assert Counter(label.removesuffix("f") for label in LISTED.findall(said)) == plain, library.name
