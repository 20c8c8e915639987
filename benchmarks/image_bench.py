"""The project, the store and the peers of the benchmark of images: made for it alone, and removed after it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import docker
from uv import find_uv_bin

from builder.build.assembly import find_image
from builder.build.base import find_base
from builder.build.layers import load_base, make_base_layer
from builder.build.stage import find_plan, gather_materials
from builder.engine import ContainerRun, ImageBuild
from builder.lock.lockfile import TOOLCHAIN
from builder.lock.pylock import read_pylock
from builder.lock.stage import locked_recipe
from builder.lock.wheels import fetch_wheels
from builder.recipe.source import read_recipe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.build.image import Image
    from builder.lock.model import LockedWheel
    from builder.tools import Tools

PROJECT = Path(__file__).parents[1]
COMPILER = "build-essential, less, python3-dev"  # what devel images have of the distribution
PINS = ("5.24.0", "5.23.0", "5.22.0", "5.21.0")  # of transformers: the four recipes
MARK = "envbuild-benchmark"
RECIPE = """\
version: 1
name: {name}
target: {{gpu: rtx-pro-6000}}
base: {{debian: trixie, packages: [{packages}]}}
python: "3.13"
as-of: 2026-11-25
stack: {{torch: "2.11.0", transformers: "{transformers}"}}
smoke: {{require: [static]}}
"""
TOOLKIT = """\
FROM {base}
RUN --mount=type=bind,from={wheels},target=/wheels : {mark} && \\
    python3 /wheels/{pip}/pip install --no-index --no-deps --no-compile --find-links=/wheels/toolkit \\
    --target=/usr/local/cuda {packages}
"""
PEER = """\
FROM {base}
COPY requirements.txt /requirements.txt
RUN --mount=type=bind,from={wheels},target=/wheels : {nonce} && python3 -m venv --without-pip /opt/env && {install}
ENV PATH=/opt/env/bin:/usr/bin:/bin
"""
INSTALL = {
    "pip": "python3 /wheels/{pip}/pip --python /opt/env/bin/python install --no-index --no-deps --no-cache-dir "
    "--find-links=/wheels --require-hashes -r /requirements.txt",
    "uv": "/wheels/uv pip install --python /opt/env/bin/python --offline --no-index --no-deps --no-cache "
    "--compile-bytecode --find-links=/wheels --require-hashes -r /requirements.txt",
}
PROOF = "import torch, transformers; print(torch.__version__, transformers.__version__)"


@dataclass(kw_only=True)
class Bench:
    """A project with the recipes, a store, and the images of the peers; all is removed at the end."""

    folder: Path
    tools: Tools
    nonce: str = field(default_factory=lambda: f"{MARK}-{time.time_ns()}")
    peers: dict[str, float] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "ENVBUILD_STORE": str(self.tools.store.root)}

    def recipe(self, number: int) -> Path:
        return self.folder / "recipes" / f"{MARK}-{number}.yaml"

    def own(self, *arguments: str) -> tuple[float, int]:
        """Run envbuild; return its seconds and its peak memory in bytes, shared pages of its processes counted once."""
        program = [sys.executable, "-c", "from builder.cli import main; main()", *arguments]
        start, ended = time.perf_counter(), threading.Event()
        with subprocess.Popen(program, env=self.environment, cwd=self.folder, stdout=subprocess.DEVNULL) as running:
            peak: list[int] = [0]
            watcher = threading.Thread(target=_watch_memory, args=(running.pid, ended, peak))
            watcher.start()
            code = running.wait()
            seconds = time.perf_counter() - start
            ended.set()
            watcher.join()
        if code not in {0, 12}:
            sys.exit(f"envbuild {' '.join(arguments)} ended with {code}")
        return seconds, peak[0]

    def image(self, number: int) -> Image:
        source = read_recipe(self.recipe(number))
        plan = find_plan(source, locked_recipe(source), self.tools.store)
        image = find_image(plan, self.tools.store) if plan else None
        if image is None:
            sys.exit(f"the image of {source.path} is not in the store")
        return image

    def build(self, dockerfile: str, context: Path, tag: str) -> float:
        """Build with the engine's BuildKit through the API; return the seconds."""
        start = time.perf_counter()
        self.tools.engine.build(ImageBuild(dockerfile=dockerfile, context=context, tag=f"{MARK}/{tag}"), lambda _: None)
        return time.perf_counter() - start

    def peer(self, kind: str, base: str) -> float:
        """Build the hand-written Dockerfile of the first lock with pip or uv; return the seconds, and keep them.

        After any changed pin its one RUN step does all of this again.
        """
        source = read_recipe(self.recipe(0))
        lines = [
            f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in locked_recipe(source).wheels
        ]
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            (Path(name) / "requirements.txt").write_text("".join(lines))
            install = INSTALL[kind].format(pip=pip_wheel().filename)
            text = PEER.format(base=base, wheels=f"{MARK}/wheels", nonce=f"{self.nonce} {kind}", install=install)
            self.peers[kind] = self.build(text, Path(name), kind)
        self.prove(f"{MARK}/{kind}")
        return self.peers[kind]

    def prove(self, reference: str) -> None:
        """Run the image: what was built must work."""
        ended = self.tools.engine.run(ContainerRun(image=reference, command=("python", "-c", PROOF)))
        if ended.code != 0:
            sys.exit(f"{reference} does not work: {ended.stderr.decode()}")

    def reference(self, number: int) -> str:
        """The tag of the image of a recipe."""
        return f"envbuild/{self.recipe(number).stem}:latest"

    @property
    def devel(self) -> Path:
        """The recipe of a base with Debian's compiler, for the naive image alone."""
        return self.folder / "recipes" / f"{MARK}-devel.yaml"

    def base(self, recipe: Path) -> str:
        """Load the Debian base of a recipe into the engine and return its tag there."""
        locked = locked_recipe(read_recipe(recipe))
        rootfs = find_base(locked.file.debian, self.tools.store) if locked.file.debian else None
        if rootfs is None:
            sys.exit("the base is not in the store")
        layer = make_base_layer(rootfs.sha256, store=self.tools.store)
        return load_base((layer,), epoch=locked.epoch, engine=self.tools.engine, store=self.tools.store)

    def clean(self) -> None:
        """Remove what this benchmark put into the engine."""
        for image in self.tools.engine.local_images():
            for tag in image.references:
                if MARK in tag:
                    self.forget(tag)

    def forget(self, tag: str) -> None:
        """Remove an image of the engine with the build cache that this benchmark left of it."""
        self.tools.engine.remove_image(tag)
        client = docker.APIClient()
        try:
            for record in client.df().get("BuildCache") or ():
                if MARK in record.get("Description", ""):
                    client.prune_builds(filters={"id": record["ID"]})  # type: ignore[arg-type]
        finally:
            client.close()

    def size_of(self, tag: str) -> int:
        """Return the bytes of an image of the engine."""
        return next(image.size for image in self.tools.engine.local_images() if tag in image.references)


def _watch_memory(pid: int, ended: threading.Event, peak: list[int]) -> None:
    while not ended.wait(0.2):
        peak[0] = max(peak[0], sum(_memory_of(each) for each in _family(pid)))


def _family(pid: int) -> Iterator[int]:
    yield pid
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended
            for child in listed.read_text().split():
                yield from _family(int(child))


def _memory_of(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def pip_wheel() -> LockedWheel:
    """Return the pip that the quickstart's toolchain is locked to."""
    path = PROJECT / "lockfiles" / "quickstart" / TOOLCHAIN
    return next(wheel for wheel in read_pylock(path.read_bytes(), source=str(path)) if wheel.name == "pip")


def prepare(bench: Bench, toolkit: Path | None) -> None:
    """Lock the recipes, fetch and make what is not timed, and give the engine the image of the wheels."""
    wheels: dict[str, LockedWheel] = {}
    for number, pin in enumerate(PINS):
        recipe = bench.recipe(number)
        recipe.parent.mkdir(exist_ok=True)
        recipe.write_text(RECIPE.format(name=recipe.stem, packages="less", transformers=pin))
        if number:  # the others differ in one pin: they begin from the first lock
            lock = bench.folder / "lockfiles"
            shutil.copytree(lock / bench.recipe(0).stem, lock / recipe.stem)
        bench.own("lock", str(recipe))
        source = read_recipe(recipe)
        locked = locked_recipe(source)
        gather_materials(source, locked, bench.tools)
        wheels |= {wheel.filename: wheel for wheel in locked.wheels}
    fetch_wheels([pip_wheel()], bench.tools.store, bench.tools.settings)
    wheels[pip_wheel().filename] = pip_wheel()
    with tempfile.TemporaryDirectory(dir=bench.folder) as name:
        path = Path(name) / "wheels.tar"
        with tarfile.open(path, "w") as archive:
            for wheel in wheels.values():
                archive.add(bench.tools.store.path(wheel.sha256), wheel.filename)
            archive.add(find_uv_bin(), "uv")
            if toolkit:
                archive.add(toolkit, "toolkit")
        with contextlib.closing(docker.APIClient(timeout=900)) as client:
            client.import_image(str(path), repository=f"{MARK}/wheels")


def devel_image(bench: Bench, toolkit: Path) -> str:
    """Build what NVIDIA's devel images hold: a compiler and, of PyPI's wheels, the whole CUDA toolkit, cuDNN and NCCL.

    The static libraries of NVIDIA's Debian packages, gigabytes more, are in no wheel and so not in this image.
    """
    bench.devel.write_text(RECIPE.format(name=bench.devel.stem, packages=COMPILER, transformers=PINS[0]))
    bench.own("lock", str(bench.devel))
    source = read_recipe(bench.devel)
    gather_materials(source, locked_recipe(source), bench.tools)
    base = bench.base(bench.devel)
    names = " ".join(sorted({path.name.split("-")[0].replace("_", "-") for path in toolkit.glob("*.whl")}))
    text = TOOLKIT.format(mark=MARK, base=base, wheels=f"{MARK}/wheels", pip=pip_wheel().filename, packages=names)
    with tempfile.TemporaryDirectory(dir=bench.folder) as context:
        bench.build(text, Path(context), "devel")
    return f"{MARK}/devel"
