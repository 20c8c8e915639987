"""Layers on their way, several at a time: written to the store and, the large ones, sent to the engine at once."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import deque
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from builder.build.bytecode import byte_code_files, prove_wheels
from builder.build.image import Layer
from builder.build.layerplan import LARGE, LayerPlan
from builder.build.tarlayer import Blob, File, Folder, LayerTar, Link
from builder.build.wheelfile import record_of
from builder.errors import BuildFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from builder.build.ahead import Ahead
    from builder.build.layers import LayerTerms
    from builder.build.tarlayer import Entry
    from builder.build.venv import Venv
    from builder.store import Store

AHEAD = 50_000_000  # bytes of files: to send less while it is made takes longer than it saves


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerJob:
    """A layer to make: which one of the image it is, counted from the lowest of its base."""

    number: int
    plan: LayerPlan
    key: str

    @property
    def size(self) -> int:
        """The bytes of all files of its wheels."""
        return sum(layout.size for layout in self.plan.layouts)


def first_large(jobs: Sequence[LayerJob]) -> Sequence[LayerJob]:
    """Return the jobs whose layers are sent while they are made: from the lowest without a gap, up to a large one."""
    run = [job for place, job in enumerate(jobs) if job.number == jobs[0].number + place]
    while run and run[-1].size < LARGE:
        run.pop()
    return run if sum(job.size for job in run) >= AHEAD else []


def by_urgency(jobs: Sequence[LayerJob]) -> list[LayerJob]:
    """Return jobs in the order in which their byte code is wanted, and in which they had better be begun.

    The engine reaches a layer when it has all that lies below, and a large one takes a while to be written before that.
    """
    below = itertools.accumulate((job.size for job in jobs), initial=0)
    urgency = {job.number: lower - job.size for job, lower in zip(jobs, below, strict=False)}
    return sorted(jobs, key=lambda job: urgency[job.number])


class Cores:
    """Who may write: one is the lowest layer that waits, which the engine needs next; the others the most urgent."""

    def __init__(self, count: int, urgent: Sequence[LayerJob]) -> None:
        """Take how many may write at a time, and all jobs, the most urgent first."""
        self._free = count
        self._urgency = {job.number: place for place, job in enumerate(urgent)}
        self._changed = threading.Condition()
        self._waiting: list[LayerJob] = []
        self._lowest: LayerJob | None = None

    @contextlib.contextmanager
    def one_for(self, job: LayerJob) -> Iterator[None]:
        """Wait for a core, and give it back."""
        with self._changed:
            self._waiting.append(job)
            self._changed.wait_for(lambda: self._free > 0 and self._next() is job)
            if self._lowest is None:
                self._lowest = job
            self._waiting.remove(job)
            self._free -= 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                if self._lowest is job:
                    self._lowest = None
                self._changed.notify_all()

    def _next(self) -> LayerJob:
        if self._lowest is None:
            return min(self._waiting, key=lambda job: job.number)
        return min(self._waiting, key=lambda job: self._urgency[job.number])


class Making:
    """Makes layers, each in a thread of its own; as many are written at a time as there are cores.

    Nearly all their time passes in libraries and system calls, which threads do side by side.
    """

    def __init__(self, terms: LayerTerms, store: Store, ahead: Ahead | None = None) -> None:
        self._terms, self._store, self._ahead = terms, store, ahead
        self._given_up = threading.Event()

    def run(
        self,
        jobs: Sequence[LayerJob],
        compile_them: Callable[[Callable[[str, Path], None]], None],
        on_progress: Callable[[str], None],
    ) -> None:
        """Make the layers of all jobs, each as soon as it has the byte code of its wheels.

        `compile_them` tells what it is given the archive of each wheel's byte code, by the wheel's sha256. Raises what
        it and the layers raise.
        """
        cores = Cores(len(os.sched_getaffinity(0)), by_urgency(jobs))
        lacking = {job.key: self._with_sources(job) for job in jobs}
        ready = {job.key: threading.Event() for job in jobs}
        archives: dict[str, Path] = {}

        def begin_what_lacks_nothing() -> None:
            for key, wheels in lacking.items():
                if not wheels:
                    ready[key].set()

        def have(wheel: str, archive: Path) -> None:
            archives[wheel] = archive
            for wheels in lacking.values():
                wheels.discard(wheel)
            begin_what_lacks_nothing()

        with ThreadPoolExecutor(len(jobs)) as pool:
            try:
                begun = [pool.submit(self._make, job, ready[job.key], archives, cores) for job in jobs]
                begin_what_lacks_nothing()
                compile_them(have)
                for count, future in enumerate(as_completed(begun), start=1):
                    on_progress(f"layer of {future.result()} ({count} of {len(jobs)})")
            except BaseException:
                self._given_up.set()
                for each in ready.values():
                    each.set()
                if self._ahead is not None:
                    self._ahead.close()
                raise

    def layer(self, job: LayerJob) -> Layer:
        """Return the layer of a job that is done."""
        blob = kept_layer(job.key, self._store)
        if blob is None:
            raise BuildFailedError(
                f"the layer of {job.plan.title} left the store while it was needed", remedy="run it again"
            )
        return Layer(title=job.plan.title, blob=blob, media_type=self._terms.codec.media_type)

    def _with_sources(self, job: LayerJob) -> set[str]:
        return {layout.wheel.sha256 for layout in job.plan.layouts if layout.sources(self._terms.venv)}

    def _make(self, job: LayerJob, ready: threading.Event, byte_code: dict[str, Path], cores: Cores) -> str:
        ready.wait()
        with contextlib.ExitStack() as core:
            core.enter_context(cores.one_for(job))
            if self._given_up.is_set():
                raise CancelledError
            prove_wheels(job.plan.layouts, self._store)
            tar = LayerTar(entries_of(job.plan, self._terms.venv, byte_code), epoch=self._terms.epoch)
            pieces = self._write(job, tar, core)
            if self._ahead is not None:
                self._ahead.send(job.number, tar.size, pieces, lambda: self.layer(job))
            deque(pieces, maxlen=0)  # what the engine did not take is written all the same
        return job.plan.title

    def _write(self, job: LayerJob, tar: LayerTar, core: contextlib.ExitStack) -> Iterator[bytes]:
        """Write a layer and yield its tar, piece by piece; nothing, if another build has made it meanwhile.

        At the end the core is given back: the engine may hold the layer back for a while.
        """
        store = self._store
        with core, store.exclusive(f"layer-{job.key}"):
            if kept_layer(job.key, store) is not None:
                return
            with store.scratch() as scratch:
                with (scratch / "layer").open("wb") as out:
                    for piece in tar.write(out, self._terms.codec):
                        if self._given_up.is_set():
                            raise CancelledError
                        yield piece
                keep_layer(job.key, tar.blob, scratch / "layer", store)


def entries_of(plan: LayerPlan, venv: Venv, byte_code: dict[str, Path]) -> list[Entry]:
    """Return what a layer holds: papers, the environment's own files, or those of wheels with byte code and RECORD."""
    if plan.papers:
        return list(plan.papers)
    if not plan.layouts:
        settings = File(path=f"{venv.prefix}/pyvenv.cfg", size=len(venv.settings), content=venv.settings)
        links = [Link(path=path, target=target) for path, target in venv.links.items()]
        return [settings, *links, Folder(path=venv.site_packages)]
    entries: list[Entry] = []
    for layout in plan.layouts:
        compiled = byte_code_files(layout, venv, byte_code.get(layout.wheel.sha256))
        entries += [*layout.files, *compiled, record_of(layout, venv, [file.path for file in compiled])]
    return entries


def kept_layer(key: str, store: Store) -> Blob | None:
    """Return the layer that is kept under a key, if its file is there."""
    record = store.result("layer", key)
    if record is None or not store.has(record["digest"].removeprefix("sha256:")):
        return None
    return Blob(**record)


def keep_layer(key: str, blob: Blob, path: Path, store: Store) -> None:
    """Move a layer's file into the store and keep it under a key."""
    store.keep(path, blob.digest.removeprefix("sha256:"))
    store.keep_result("layer", key, asdict(blob))
