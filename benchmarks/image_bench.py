"""What the benchmark of images runs: envbuild, timed and with its memory, and the engine's images; all are removed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import docker
from image_stack import MARK

from builder.build.compression import COMPRESSIONS
from builder.build.foundation import base_of
from builder.build.layers import base_reference
from builder.engine import ContainerRun, ImageBuild

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_stack import Stack

    from builder.build.assembly import ImagePlan
    from builder.build.image import Image
    from builder.tools import Tools

PROOF = "import torch, transformers; print(torch.__version__, transformers.__version__)"


@dataclass(kw_only=True)
class Bench:
    """A stack, and what was measured of our images so far: `ours` are seconds, and the bytes of the image's `size`."""

    stack: Stack
    tools: Tools
    ours: dict[str, float] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """A folder that is removed at the end."""
        return self.stack.folder

    def own(self, command: str, number: int) -> tuple[float, int]:
        """Run envbuild; return its seconds and its peak memory in bytes, shared pages of its processes counted once."""
        recipe = self.stack.recipe(number)
        program = [sys.executable, "-c", "from builder.cli import main; main()", command, str(recipe)]
        environment = {**os.environ, "ENVBUILD_STORE": str(self.tools.store.root)}
        os.sync()  # what was written before is not written meanwhile
        start, ended = time.perf_counter(), threading.Event()
        with subprocess.Popen(program, env=environment, cwd=self.folder, stdout=subprocess.DEVNULL) as running:
            peak: list[int] = [0]
            watcher = threading.Thread(target=_watch_memory, args=(running.pid, ended, peak))
            watcher.start()
            code = running.wait()
            seconds = time.perf_counter() - start
            ended.set()
            watcher.join()
        if code not in {0, 12}:
            sys.exit(f"envbuild {command} {recipe} ended with {code}")
        return seconds, peak[0]

    def plan(self, number: int) -> ImagePlan:
        """Return what the image of a copy of the recipe is made of."""
        return self.stack.plan(number, self.tools.store)

    def image(self, number: int) -> Image:
        """Return the image of a copy of the recipe that was built."""
        return self.stack.image(number, self.tools.store)

    def read_wheels(self) -> None:
        """Read the wheels once, as those of the peers were written just before: both find them in memory."""
        for wheel in self.plan(0).wheels:
            for _ in self.tools.store.read(wheel.sha256):
                pass

    def build(self, dockerfile: str, context: Path, tag: str) -> float:
        """Build with the engine's BuildKit through the API; return the seconds."""
        os.sync()
        start = time.perf_counter()
        self.tools.engine.build(ImageBuild(dockerfile=dockerfile, context=context, tag=tag), lambda _: None)
        return time.perf_counter() - start

    def prove(self, reference: str) -> None:
        """Run the image: what was built must work."""
        ended = self.tools.engine.run(ContainerRun(image=reference, command=("python", "-c", PROOF)))
        if ended.code != 0:
            sys.exit(f"{reference} does not work: {ended.stderr.decode()}")

    def base(self, copy: int | str) -> str:
        """Load the base of a copy of the recipe into the engine and return its tag there."""
        source, locked = self.stack.read(copy)
        return base_reference(base_of(locked, self.tools, COMPRESSIONS[source.recipe.compression]))

    def clean(self) -> None:
        """Remove what this benchmark put into the engine."""
        for image in self.tools.engine.local_images():
            for tag in image.references:
                if MARK in tag:
                    self.forget(tag)

    def forget(self, tag: str) -> None:
        """Remove an image of the engine with the build cache that this benchmark left of it."""
        self.tools.engine.remove_image(tag)
        client = docker.APIClient(base_url=os.environ.get("DOCKER_HOST"))
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
