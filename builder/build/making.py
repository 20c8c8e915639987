"""Layers on their way, several at a time: made and written to the store, or read there, and sent to the engine."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from builder.build.bytecode import byte_code_files, prove_wheels
from builder.build.image import Layer, unpacked_layer
from builder.build.layerplan import LARGE, LayerPlan
from builder.build.tarlayer import Blob, File, Folder, LayerTar, Link
from builder.build.wheelfile import record_of
from builder.errors import BuildFailedError
from builder.giveup import GIVEN_UP, keep_on

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from builder.build.ahead import Ahead
    from builder.build.layers import LayerTerms
    from builder.build.tarlayer import Entry
    from builder.build.venv import Venv
    from builder.store import Store

AHEAD = 50_000_000  # bytes of files: to send less before the image takes longer than it saves


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerJob:
    """A layer to make, or only to send if the store has it: which one of the image it is, counted from the lowest."""

    number: int
    plan: LayerPlan
    key: str
    stored: bool = False

    @property
    def size(self) -> int:
        """The bytes of all files of its wheels."""
        return sum(layout.size for layout in self.plan.layouts)


def worth_sending(jobs: Sequence[LayerJob]) -> Sequence[LayerJob]:
    """Return those of an image's upper layers that are sent before the image: all up to the last large one."""
    count = max((place for place, job in enumerate(jobs, start=1) if job.size >= LARGE), default=0)
    return jobs[:count] if sum(job.size for job in jobs[:count]) >= AHEAD else []


def by_urgency(jobs: Sequence[LayerJob]) -> list[LayerJob]:
    """Return jobs, given from the lowest, in the order in which they had better be begun, and want their byte code.

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


class ByteCode:
    """The archives of wheels' byte code, by the wheel's sha256, as they come."""

    def __init__(self) -> None:
        """None is there yet."""
        self._archives: dict[str, Path] = {}
        self._changed = threading.Condition()
        self._given_up = False

    def have(self, wheel: str, archive: Path) -> None:
        """Take the archive of a wheel."""
        with self._changed:
            self._archives[wheel] = archive
            self._changed.notify_all()

    def of(self, wheels: Iterable[str]) -> Mapping[str, Path]:
        """Return the archives of some wheels when all are there; fewer, if they are given up."""
        wanted = frozenset(wheels)
        with self._changed:
            self._changed.wait_for(lambda: self._given_up or wanted <= self._archives.keys())
            return {wheel: archive for wheel, archive in self._archives.items() if wheel in wanted}

    def give_up(self) -> None:
        """Let nobody wait any longer."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()


class Making:
    """Makes and sends layers, each in a thread of its own; as many are made or read at a time as there are cores.

    Nearly all their time passes in libraries and system calls, which threads do side by side.
    """

    def __init__(self, terms: LayerTerms, store: Store, ahead: Ahead | None = None) -> None:
        self._terms, self._store, self._ahead = terms, store, ahead

    def run(
        self,
        jobs: Sequence[LayerJob],
        compile_them: Callable[[Callable[[str, Path], None]], None],
        on_progress: Callable[[str], None],
    ) -> None:
        """Make or send the layers of all jobs, the most urgent first, each as soon as it has its wheels' byte code.

        `compile_them` tells what it is given the archive of each wheel's byte code, by the wheel's sha256, in a thread
        of its own. Raises what it or a layer raises, as soon as the other threads have given up their work.
        """
        cores, byte_code, given_up = Cores(len(os.sched_getaffinity(0)), jobs), ByteCode(), threading.Event()
        with ThreadPoolExecutor(len(jobs) + 1, initializer=GIVEN_UP.set, initargs=(given_up,)) as pool:
            try:
                from_lowest = sorted(jobs, key=lambda job: job.number)
                begun = {pool.submit(self._work, job, byte_code, cores): job for job in from_lowest}
                compiling = pool.submit(compile_them, byte_code.have)
                done = itertools.count(1)
                for future in as_completed([compiling, *begun]):
                    future.result()
                    if future is not compiling:
                        on_progress(f"layer of {begun[future].plan.title} ({next(done)} of {len(jobs)})")
            except BaseException:
                given_up.set()
                byte_code.give_up()
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
        return self._layer_of(job, blob)

    def known(self, job: LayerJob) -> Layer | None:
        """Return the layer of a job that was done before, whether or not the store still has its file."""
        record = self._store.result("layer", job.key)
        return None if record is None else self._layer_of(job, Blob(**record))

    def _layer_of(self, job: LayerJob, blob: Blob) -> Layer:
        return Layer(title=job.plan.title, blob=blob, media_type=self._terms.codec.media_type)

    def _work(self, job: LayerJob, byte_code: ByteCode, cores: Cores) -> None:
        layouts = () if job.stored else job.plan.layouts
        archives = byte_code.of(layout.wheel.sha256 for layout in layouts if layout.sources(self._terms.venv))
        with contextlib.ExitStack() as core:
            core.enter_context(cores.one_for(job))
            keep_on()
            if job.stored or not self._make(job, archives, core):
                layer = self.layer(job)
                self._send(job, layer.blob.unpacked, _on_a_core(unpacked_layer(layer, self._store), core))

    def _make(self, job: LayerJob, archives: Mapping[str, Path], core: contextlib.ExitStack) -> bool:
        """Make a layer and send it meanwhile; return False if another build has made it by then."""
        prove_wheels(job.plan.layouts, self._store)
        tar = LayerTar(entries_of(job.plan, self._terms.venv, archives), epoch=self._terms.epoch)
        with contextlib.closing(self._write(job, tar)) as written:
            first = next(written, None)
            if first is None:
                return False
            pieces = _on_a_core(itertools.chain([first], written), core)
            self._send(job, tar.size, pieces)
            deque(pieces, maxlen=0)  # what the engine did not take is written all the same
            return True

    def _send(self, job: LayerJob, size: int, pieces: Iterator[bytes]) -> None:
        if self._ahead is not None:
            self._ahead.send(job.number, size, pieces, lambda: self.layer(job))

    def _write(self, job: LayerJob, tar: LayerTar) -> Generator[bytes]:
        """Write a layer and yield its tar, piece by piece; nothing, if another build has made it meanwhile."""
        store = self._store
        with store.exclusive(f"layer-{job.key}"):
            if kept_layer(job.key, store) is not None:
                return
            with store.scratch() as scratch:
                with (scratch / "layer").open("wb") as out:
                    yield from tar.write(out, self._terms.codec)
                keep_layer(job.key, tar.blob, scratch / "layer", store)


def _on_a_core(pieces: Iterator[bytes], core: contextlib.ExitStack) -> Iterator[bytes]:
    """Yield the pieces of a layer; then give its core back, for the engine may hold the layer back for a while."""
    for piece in pieces:
        keep_on()
        yield piece
    core.close()


def entries_of(plan: LayerPlan, venv: Venv, byte_code: Mapping[str, Path]) -> list[Entry]:
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
