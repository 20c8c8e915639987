"""Wheels -> layers: each a function of its wheels, the base's Python and the lock's clock, and made only once."""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from builder.build.bytecode import byte_code_files, byte_code_key, compile_wheels
from builder.build.compression import COMPRESSIONS, GZIP, Compression, CompressionName
from builder.build.image import ImageSettings, Layer, assemble, chain_ids, load_image
from builder.build.layerplan import LARGE, LayerPlan
from builder.build.papers import papers_key
from builder.build.tarlayer import Blob, File, Folder, LayerTar, Link, compress_tar
from builder.build.wheelfile import record_of
from builder.document import key_of
from builder.errors import BuildFailedError
from builder.registry.share import NO_SHARE, Shared
from builder.store import Store, prove_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from builder.build.ahead import Ahead
    from builder.build.tarlayer import Entry
    from builder.build.venv import Venv
    from builder.engine import Engine
    from builder.lock.model import LockedImage
    from builder.registry.share import Sharing

LAYOUT = 3  # raise when the same wheels shall become other layers
SHARED = Shared(kind="layer", fields={"digest": str, "size": int, "diff_id": str, "unpacked": int}, file="digest")
GIVING_WAY = 5  # niceness of what makes layers
AHEAD = 50_000_000  # bytes of files: to send less while it is made takes longer than it saves


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTerms:
    """What all layers of an image have in common, besides their wheels, and what changes their bytes.

    `python` is a text that changes whenever the base's Python does (as the sha256 of its packages), `epoch` the time of
    all files in seconds since 1970.
    """

    venv: Venv
    python: str
    epoch: int
    compression: CompressionName = "gzip"

    @property
    def codec(self) -> Compression:
        """How the layers are compressed."""
        return COMPRESSIONS[self.compression]


def make_base_layer(rootfs_sha256: str, *, store: Store, compression: Compression = GZIP) -> Layer:
    """Return the layer of a root filesystem, an uncompressed tar in the store: its diff id is the tar's sha256."""
    key = base_layer_key(rootfs_sha256, compression)
    with store.exclusive(f"layer-{key}"):
        blob = _kept(key, store)
        if blob is None:
            with store.scratch() as scratch, store.path(rootfs_sha256).open("rb") as tar:
                with (scratch / "layer").open("wb") as out:
                    blob = compress_tar(tar, out, compression)
                seen = blob.diff_id.removeprefix("sha256:")
                if seen != rootfs_sha256:
                    raise store.damaged(rootfs_sha256, seen)
                _keep(key, blob, scratch / "layer", store)
    return Layer(title="base", blob=blob, media_type=compression.media_type)


def image_layers(base: LockedImage) -> tuple[Layer, ...]:
    """Return the layers of a base image as they are in its registry."""
    return tuple(
        Layer(
            title=f"{base.reference} ({number} of {len(base.layers)})",
            blob=Blob(digest=layer.digest, size=layer.size, diff_id=layer.diff_id, unpacked=layer.unpacked),
            media_type=layer.media_type,
        )
        for number, layer in enumerate(base.layers, start=1)
    )


def base_layer_key(rootfs_sha256: str, compression: Compression) -> str:
    """Return the key of a base layer."""
    return key_of({"tar": rootfs_sha256, "compressor": compression.compressor})


def make_layers(
    plans: Iterable[LayerPlan],
    *,
    base: tuple[Layer, ...],
    terms: LayerTerms,
    engine: Engine,
    store: Store,
    on_progress: Callable[[str], None],
    share: Sharing = NO_SHARE,
    ahead: Ahead | None = None,
) -> tuple[Layer, ...]:
    """Make the planned layers, several at once, or find them in the store or where they are shared.

    `base` are the layers with the Python that compiles byte code; `ahead` sends large layers to the engine while they
    are made. Raises BuildFailedError.
    """
    keyed = [(plan, layer_key(plan, terms)) for plan in plans]
    share.fetch_results(SHARED, [key for _, key in keyed if _kept(key, store) is None])
    numbered = [_LayerJob(number=len(base) + place, plan=plan, key=key) for place, (plan, key) in enumerate(keyed)]
    jobs = [job for job in numbered if _kept(job.key, store) is None]
    wheels = {layout.wheel.sha256 for job in jobs for layout in job.plan.layouts}
    prove_all(store, [sha256 for sha256 in wheels if store.has(sha256)])

    def base_image() -> str:
        return load_base(base, epoch=terms.epoch, engine=engine, store=store)

    def compile_them(on_compiled: Callable[[str, Path], None]) -> None:
        compile_wheels(
            [layout for job in jobs for layout in job.plan.layouts],
            venv=terms.venv,
            python=terms.python,
            base_image=base_image,
            engine=engine,
            store=store,
            on_progress=on_progress,
            on_compiled=on_compiled,
        )

    making = _Making(terms, store, ahead)
    if ahead is not None and (sent := _first_large(jobs)):
        below = tuple(making.layer(job) for job in numbered[: sent[0].number - len(base)])
        if not below:
            base_image()
        ahead.begin((*base, *below), len(sent))
    if jobs:
        making.run(jobs, compile_them, on_progress)
    share.share_results(SHARED, [job.key for job in jobs])
    return tuple(making.layer(job) for job in numbered)


def base_reference(base: tuple[Layer, ...]) -> str:
    """Return the local tag of a base."""
    return base_tag(chain_ids(base)[-1])


def find_base_layer(rootfs_sha256: str, store: Store, compression: Compression = GZIP) -> Blob | None:
    """Return the layer of a root filesystem if it was made before."""
    return _kept(base_layer_key(rootfs_sha256, compression), store)


def find_layers(plans: Iterable[LayerPlan], terms: LayerTerms, store: Store) -> tuple[Blob | None, ...]:
    """Return the planned layers that were made before, in order."""
    return tuple(_kept(layer_key(plan, terms), store) for plan in plans)


def load_base(base: tuple[Layer, ...], *, epoch: int, engine: Engine, store: Store) -> str:
    """Load the base alone into the engine and return its reference there."""
    reference = base_reference(base)
    load_image(assemble(base, ImageSettings(epoch=epoch)), reference, engine=engine, store=store)
    return reference


def base_tag(chain_id: str) -> str:
    """Return the local tag of a base alone, by the chain id of its last layer (the diff id of its only one)."""
    return f"envbuild/base:{chain_id.removeprefix('sha256:')[:16]}"


def layer_key(plan: LayerPlan, terms: LayerTerms) -> str:
    """Return the key of a layer: everything that can change its bytes.

    A wheel without Python files does not depend on the base's Python, so its layer serves every base.
    """
    venv = terms.venv
    return key_of(
        {
            "layout": LAYOUT,
            "venv": venv.identity,
            **({"toolkit": venv.toolkit_links} if venv.cuda and not plan.layouts and not plan.papers else {}),
            "epoch": terms.epoch,
            "wheels": [
                {
                    "filename": layout.wheel.filename,
                    "sha256": layout.wheel.sha256,
                    "byte_code": byte_code_key(layout, venv, terms.python) if layout.sources(venv) else None,
                }
                for layout in plan.layouts
            ],
            "installer": version("installer"),
            "compressor": terms.codec.compressor,
            **({"papers": papers_key(plan.papers)} if plan.papers else {}),
        }
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _LayerJob:
    """A layer to make: which one of the image it is, counted from the lowest of its base."""

    number: int
    plan: LayerPlan
    key: str

    @property
    def size(self) -> int:
        """The bytes of all files of its wheels."""
        return sum(layout.size for layout in self.plan.layouts)


def _give_way() -> None:
    """Let the engine go before this thread: it puts layers one upon the other on one core, and all wait for that."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), GIVING_WAY)  # Linux: of the thread alone


def _first_large(jobs: Sequence[_LayerJob]) -> Sequence[_LayerJob]:
    """Return the jobs whose layers are sent while they are made: from the lowest without a gap, up to a large one."""
    run = [job for place, job in enumerate(jobs) if job.number == jobs[0].number + place]
    while run and run[-1].size < LARGE:
        run.pop()
    return run if sum(job.size for job in run) >= AHEAD else []


class _Making:
    """Layers on their way, each in a thread of its own; as many are written at a time as there are cores.

    Nearly all their time passes in libraries and system calls, which threads do side by side.
    """

    def __init__(self, terms: LayerTerms, store: Store, ahead: Ahead | None = None) -> None:
        self._terms, self._store, self._ahead = terms, store, ahead
        self._cores = threading.Semaphore(len(os.sched_getaffinity(0)))
        self._given_up = threading.Event()

    def run(
        self,
        jobs: Sequence[_LayerJob],
        compile_them: Callable[[Callable[[str, Path], None]], None],
        on_progress: Callable[[str], None],
    ) -> None:
        """Make the layers of all jobs, the lowest first, but each only when it has the byte code of its wheels."""
        lacking = {job.key: self._with_sources(job) for job in jobs}
        archives: dict[str, Path] = {}
        with ThreadPoolExecutor(len(jobs), initializer=_give_way) as pool:
            begun = [pool.submit(self._make, job, archives) for job in jobs if not lacking[job.key]]

            def begin(wheel: str, archive: Path) -> None:
                archives[wheel] = archive
                for job in jobs:
                    if wheel in lacking[job.key]:
                        lacking[job.key].remove(wheel)
                        if not lacking[job.key]:
                            begun.append(pool.submit(self._make, job, archives))

            try:
                compile_them(begin)
                for count, future in enumerate(as_completed(begun), start=1):
                    on_progress(f"layer of {future.result()} ({count} of {len(jobs)})")
            except BaseException:
                self._given_up.set()
                if self._ahead is not None:
                    self._ahead.close()
                raise

    def layer(self, job: _LayerJob) -> Layer:
        """Return the layer of a job that is done."""
        blob = _kept(job.key, self._store)
        if blob is None:
            raise BuildFailedError(
                f"the layer of {job.plan.title} left the store while it was needed", remedy="run it again"
            )
        return Layer(title=job.plan.title, blob=blob, media_type=self._terms.codec.media_type)

    def _with_sources(self, job: _LayerJob) -> set[str]:
        return {layout.wheel.sha256 for layout in job.plan.layouts if layout.sources(self._terms.venv)}

    def _make(self, job: _LayerJob, byte_code: dict[str, Path]) -> str:
        with ExitStack() as core:
            core.enter_context(self._cores)
            tar = LayerTar(entries_of(job.plan, self._terms.venv, byte_code), epoch=self._terms.epoch)
            pieces = self._write(job, tar, core)
            if self._ahead is not None:
                self._ahead.send(job.number, tar.size, pieces, lambda: self.layer(job))
            deque(pieces, maxlen=0)  # what the engine did not take is written all the same
        return job.plan.title

    def _write(self, job: _LayerJob, tar: LayerTar, core: ExitStack) -> Iterator[bytes]:
        """Write a layer and yield its tar, piece by piece; nothing, if another build has made it meanwhile.

        At the end the core is given back: the engine may hold the layer back for a while.
        """
        store = self._store
        with core, store.exclusive(f"layer-{job.key}"):
            if _kept(job.key, store) is not None:
                return
            with store.scratch() as scratch:
                with (scratch / "layer").open("wb") as out:
                    for piece in tar.write(out, self._terms.codec):
                        if self._given_up.is_set():
                            raise CancelledError
                        yield piece
                _keep(job.key, tar.blob, scratch / "layer", store)


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


def _kept(key: str, store: Store) -> Blob | None:
    record = store.result("layer", key)
    if record is None or not store.has(record["digest"].removeprefix("sha256:")):
        return None
    return Blob(**record)


def _keep(key: str, blob: Blob, path: Path, store: Store) -> None:
    store.keep(path, blob.digest.removeprefix("sha256:"))
    store.keep_result("layer", key, asdict(blob))
