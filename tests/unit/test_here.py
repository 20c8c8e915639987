"""Wheels compiled without a container: with a Python at hand whose `build` is a stand-in of the tests."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from builder.build.benches import HostBench, host_toolchain
from builder.build.effort import Effort
from builder.build.wheels import WheelJob
from builder.errors import UsageError
from tests.unit.test_wheels_command import WHEEL, Machine, machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["machine"]

FRONTEND = """
import os, pathlib, sys, zipfile
out = pathlib.Path(sys.argv[sys.argv.index("--outdir") + 1])
print("jobs", os.environ["MAX_JOBS"], "archs", os.environ["TORCH_CUDA_ARCH_LIST"], flush=True)
if "CODE" in os.environ:
    os.kill(os.getpid(), int(os.environ["CODE"]))
with zipfile.ZipFile(out / "WHEEL", "w") as wheel:
    wheel.writestr("nvfp4_kernels/__init__.py", "")
"""


def python_with(folder: Path, *names: str) -> str:
    """Return a Python of this machine that also has `build` and these distributions."""
    site = folder / "site"
    (site / "build").mkdir(parents=True, exist_ok=True)
    (site / "build" / "__main__.py").write_text(FRONTEND.replace("WHEEL", WHEEL))
    for name in names:
        (site / f"{name}-1.0.dist-info").mkdir(exist_ok=True)
        (site / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_a_wheel_is_compiled_with_the_python_at_hand_under_a_key_of_its_own(machine: Machine, tmp_path: Path) -> None:
    (container,) = machine.document()["wheels"]
    here = python_with(tmp_path, "build", "wheel", "setuptools")
    (wheel,) = machine.document("--here", here)["wheels"]
    assert wheel["origin"] == "compiled"
    assert wheel["key"] != container["key"]
    assert len(machine.engine.runs) == 1  # the container's
    assert machine.document("--here", here)["wheels"][0]["origin"] == "store"
    assert machine.document()["wheels"][0]["sha256"] == container["sha256"]  # an image does not take it
    (log,) = (machine.folder / "store" / "logs").glob(f"*-{wheel['key'][:16]}.log")
    assert "archs 9.0;12.0" in log.read_text()


def test_what_the_python_lacks_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    python = python_with(tmp_path, "build", "wheel", "setuptools")
    with pytest.raises(UsageError, match="has no no-such-thing") as caught:
        host_toolchain(python, ("no-such-thing",))
    assert caught.value.remedy == f"{python} -m pip install no-such-thing"


def test_the_versions_at_hand_are_what_the_key_is_over(tmp_path: Path) -> None:
    python = python_with(tmp_path, "build", "wheel", "setuptools")
    facts = host_toolchain(python, ())
    assert (facts["build"], facts["python"]) == ("1.0", sys.version.split()[0])
    assert {"nvcc", "c++", "machine"} <= {*facts}


def test_wheels_made_here_are_not_shared(machine: Machine) -> None:
    machine.monkeypatch.setenv("ENVBUILD_SHARE", "127.0.0.1:1/team/shared")
    code, _, err = machine.wheels("--here", "python3", "--push")
    assert (code, "this machine alone" in err) == (2, True)


@pytest.mark.parametrize(("signal", "code"), [(9, 137), (15, 143)])
def test_a_killed_build_ends_as_it_would_in_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signal: int, code: int
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    monkeypatch.setenv("CODE", str(signal))
    bench = HostBench(python=python_with(tmp_path), effort=Effort(memory=1, jobs=1))
    job = WheelJob(
        name="x",
        source=source,
        source_digest="",
        environment=(("TORCH_CUDA_ARCH_LIST", "9.0"),),
        toolchain_key="",
        script_digest="",
    )
    lines: list[str] = []
    hear: Callable[[str], None] = lines.append
    ended = bench.compile(job, source, tmp_path / "work", 3, hear)
    assert ended.code == code
    assert lines == ["jobs 3 archs 9.0"]
