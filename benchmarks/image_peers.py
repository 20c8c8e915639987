"""The peers of the benchmark of images: what people write by hand, with pip and with uv, of the same wheels."""

from __future__ import annotations

import contextlib
import os
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import docker
from image_stack import MARK, gather
from uv import find_uv_bin

from builder.build.render import quoted
from builder.lock.stage import lock_recipe
from builder.lock.wheels import fetch_wheels
from builder.recipe.source import read_recipe

if TYPE_CHECKING:
    from image_bench import Bench

    from builder.build.assembly import ImagePlan
    from builder.lock.model import LockedWheel

COMPILER = ("build-essential", "less", "python3-dev")  # what devel images have of the distribution
WHEELS = f"{MARK}/wheels"
DEVEL = f"{MARK}/devel"
TOOLKIT = """\
FROM {base}
RUN --mount=type=bind,from={wheels},target=/wheels : {nonce} && \\
    python3 /wheels/{pip}/pip install --no-index --no-deps --no-compile --find-links=/wheels/toolkit \\
    --target=/usr/local/cuda {packages}
"""
PEER = """\
FROM {base}
COPY requirements.txt /requirements.txt
RUN --mount=type=bind,from={wheels},target=/wheels : {nonce} && python3 -m venv --without-pip /opt/env && {install}
ENV {environment}
"""
COMMANDS = {"pip": "docker build, pip install", "uv": "docker build, uv pip install --compile-bytecode"}
INSTALL = {
    "pip": "python3 /wheels/{pip}/pip --python /opt/env/bin/python install --no-index --no-deps --no-cache-dir "
    "--find-links=/wheels --require-hashes -r /requirements.txt",
    "uv": "/wheels/uv pip install --python /opt/env/bin/python --offline --no-index --no-deps --no-cache "
    "--compile-bytecode --find-links=/wheels --require-hashes -r /requirements.txt",
}


def pip_wheel(bench: Bench) -> LockedWheel:
    """Return the pip that the stack is locked to."""
    _, locked = bench.stack.read(0)
    return next(wheel for wheel in locked.toolchain_wheels if wheel.name == "pip")


def import_wheels(bench: Bench, toolkit: Path | None) -> None:
    """Give the engine an image of the first copy's wheels, compiled ones too, of pip and uv, and of the toolkit."""
    pip = pip_wheel(bench)
    fetch_wheels([pip], bench.tools.store, bench.tools.settings)
    wheels = {wheel.filename: wheel.sha256 for wheel in bench.plan(0).wheels} | {pip.filename: pip.sha256}
    with tempfile.TemporaryDirectory(dir=bench.folder) as name:
        path = Path(name) / "wheels.tar"
        with tarfile.open(path, "w") as archive:
            for filename, sha256 in wheels.items():
                archive.add(bench.tools.store.path(sha256), filename)
            archive.add(find_uv_bin(), "uv")
            if toolkit:
                archive.add(toolkit, "toolkit")
        with contextlib.closing(docker.APIClient(base_url=os.environ.get("DOCKER_HOST"), timeout=900)) as client:
            client.import_image(str(path), repository=WHEELS)


def requirements(plan: ImagePlan) -> str:
    """Return the requirements file of all wheels of an image, each by the hash of its file."""
    return "".join(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in plan.wheels)


def build_peer(bench: Bench, kind: str, base: str) -> float:
    """Build the hand-written Dockerfile of the first copy with pip or uv; return the seconds.

    After any changed pin its one RUN step does all of this again.
    """
    plan, tag = bench.plan(0), f"{MARK}/{kind}"
    text = PEER.format(
        base=base,
        wheels=WHEELS,
        nonce=_nonce(),
        install=INSTALL[kind].format(pip=pip_wheel(bench).filename),
        environment=" ".join(f"{name}={quoted(value)}" for name, value in plan.settings.environment.items()),
    )
    with tempfile.TemporaryDirectory(dir=bench.folder) as context:
        (Path(context) / "requirements.txt").write_text(requirements(plan), encoding="utf-8")
        seconds = bench.build(text, Path(context), tag)
    bench.prove(tag)
    return seconds


def build_devel(bench: Bench, toolkit: Path) -> None:
    """Build what NVIDIA's devel images hold: a compiler and, of PyPI's wheels, the whole CUDA toolkit, cuDNN and NCCL.

    The static libraries of NVIDIA's Debian packages, gigabytes more, are in no wheel and so not in this image.
    """
    bench.stack.write("devel", {"base.packages": COMPILER})
    lock_recipe(read_recipe(bench.stack.recipe("devel")), bench.tools)
    gather(bench.stack, "devel", bench.tools)
    names = " ".join(sorted({path.name.split("-")[0].replace("_", "-") for path in toolkit.glob("*.whl")}))
    text = TOOLKIT.format(
        base=bench.base("devel"), wheels=WHEELS, nonce=_nonce(), pip=pip_wheel(bench).filename, packages=names
    )
    with tempfile.TemporaryDirectory(dir=bench.folder) as context:
        bench.build(text, Path(context), DEVEL)


def _nonce() -> str:
    """Return what no step had before: the engine does it anew, and its build cache bears our mark."""
    return f"{MARK}-{time.time_ns()}"
