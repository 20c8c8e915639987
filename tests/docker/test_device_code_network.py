"""Architectures with a suffix, compiled here by nvcc: what the static check and the pretended runtime make of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from builder.fatbin import device_code, runs_on
from builder.recipe.targets import find_target
from builder.verify.device_code import device_code_check
from builder.verify.dry_run.pretended import described
from builder.verify.static_report import SeenLibrary, SeenLinks, StaticReport

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")]

TOOLKIT = "nvidia-cuda-nvcc==13.1.115 nvidia-cuda-crt==13.1.115 nvidia-nvvm==13.1.115 nvidia-cuda-runtime==13.1.80"
SOURCE = """
__global__ void add_one(float *x) { *x += 1.0f; }
extern "C" int launch() { add_one<<<1, 32>>>(nullptr); return cudaGetLastError(); }
"""
NO_IMAGE = 209
# Which of the targets runs machine code for an architecture: 10.0 (b200), 10.3 (b300), 12.0 and 12.1 (gb10).
RUNS = {
    "100a": {"b200"},
    "100f": {"b200", "b300"},
    "103f": {"b300"},
    "120a": {"rtx-pro-6000"},
    "120f": {"rtx-pro-6000", "gb10"},
    "121a": {"gb10"},
    "121f": {"gb10"},
}
TARGETS = ("b200", "b300", "rtx-pro-6000", "gb10")


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CUDA 13.1 toolkit as the packages of the index have it."""
    site = tmp_path_factory.mktemp("toolkit")
    install = [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*install, "--target", str(site), *TOOLKIT.split()], check=True)
    home = site / "nvidia" / "cu13"
    (home / "lib" / "libcudart.so").symlink_to("libcudart.so.13")
    (home / "lib64").symlink_to("lib")
    return home


def compiled(toolkit: Path, folder: Path, arch: str) -> Path:
    """A library with one kernel, which it launches through the shared runtime, for one architecture only."""
    (folder / "k.cu").write_text(SOURCE)
    code = ["-gencode", f"arch=compute_{arch},code=sm_{arch}", "-Xcompiler", "-fPIC", "-cudart", "shared"]
    subprocess.run([toolkit / "bin" / "nvcc", "-shared", *code, "-o", folder / "k.so", folder / "k.cu"], check=True)
    return folder / "k.so"


def launched(library: Path, players: Path, gpu: str) -> int:
    """The code of CUDA that the library's own launch ends with on a pretended GPU."""
    done = subprocess.run(
        [sys.executable, "-c", "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).launch())", str(library)],
        env={
            **os.environ,
            "LD_PRELOAD": f"{players}/libpretended_cudart.so",
            "LD_LIBRARY_PATH": str(players),
            "ENVBUILD_GPU": described(find_target(gpu), "13.1"),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def judged(library: Path, gpu: str) -> str:
    """What the static check makes of it as the one library of a package that the recipe compiled."""
    codes = device_code(library)
    assert codes is not None
    target = find_target(gpu)
    seen = SeenLibrary(
        distribution="kernels",
        path="kernels/k.so",
        codes={code.label: 1 for code in codes},
        usable=runs_on(codes, target.capability),
        error=None,
    )
    links = SeenLinks(looked_at=0, problems=(), copies=(), unreadable=())
    report = StaticReport(
        distributions=(),
        others=(),
        libraries=(seen,),
        bare=(),
        links=links,
        markers={},
        imports=(),
        serve=None,
        facts={},
    )
    return device_code_check(report, capability=target.capability, target_name=target.id, built=["kernels"]).summary


@pytest.mark.parametrize("arch", RUNS)
def test_machine_code_with_a_suffix_runs_on_its_gpu_or_family_alone(
    toolkit: Path, players: Path, tmp_path: Path, arch: str
) -> None:
    library = compiled(toolkit, tmp_path, arch)
    assert {gpu for gpu in TARGETS if launched(library, players, gpu) == 0} == RUNS[arch]
    assert {gpu for gpu in TARGETS if judged(library, gpu).startswith("1 of 1 libraries")} == RUNS[arch]


def test_a_package_for_data_centre_blackwell_alone_has_no_code_for_the_workstation_card(
    toolkit: Path, players: Path, tmp_path: Path
) -> None:
    library = compiled(toolkit, tmp_path, "100a")
    assert launched(library, players, "rtx-pro-6000") == NO_IMAGE
    assert judged(library, "rtx-pro-6000") == (
        "kernels/k.so carries sm_100a only; the target rtx-pro-6000 (12.0) needs sm_120, sm_120a/f or PTX <= 12.0"
    )
