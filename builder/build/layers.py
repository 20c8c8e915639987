"""Wheels -> layers: each a function of its wheels, the base's Python and the lock's clock, and made only once."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from builder.build.bytecode import byte_code_files, byte_code_key, compile_wheels
from builder.build.compression import COMPRESSIONS, GZIP, Compression, CompressionName
from builder.build.image import ImageSettings, Layer, assemble, chain_ids, load_image
from builder.build.papers import papers_key
from builder.build.tarlayer import Blob, File, Folder, Link, compress_tar, write_layer
from builder.build.wheelfile import record_of
from builder.document import key_of
from builder.errors import BuildFailedError
from builder.process import begin_worker
from builder.registry.share import NO_SHARE, Shared
from builder.store import Store, prove_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from builder.build.layerplan import LayerPlan
    from builder.build.tarlayer import Entry
    from builder.build.venv import Venv
    from builder.engine import Engine
    from builder.lock.model import LockedImage
    from builder.registry.share import Sharing

LAYOUT = 2  # raise when the same wheels shall become other layers
SHARED = Shared(kind="layer", fields={"digest": str, "size": int, "diff_id": str, "unpacked": int}, file="digest")
PARALLEL = 50_000_000  # bytes: below, starting processes takes longer than the work


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
    on_finished: Callable[[tuple[Layer, ...]], None] = lambda _layers: None,
) -> tuple[Layer, ...]:
    """Make the planned layers, in parallel over the cores, or find them in the store or where they are shared.

    `base` are the layers with the Python that compiles byte code; `on_finished` sees the base with all layers up to the
    first that is not made yet, each time that there are more. Raises BuildFailedError.
    """
    keyed = [(plan, layer_key(plan, terms)) for plan in plans]
    share.fetch_results(SHARED, [key for _, key in keyed if _kept(key, store) is None])
    missing = [(plan, key) for plan, key in keyed if _kept(key, store) is None]
    wheels = {layout.wheel.sha256 for plan, _ in missing for layout in plan.layouts}
    prove_all(store, [sha256 for sha256 in wheels if store.has(sha256)])
    byte_code = compile_wheels(
        [layout for plan, _ in missing for layout in plan.layouts],
        venv=terms.venv,
        python=terms.python,
        base_image=lambda: load_base(base, epoch=terms.epoch, engine=engine, store=store),
        engine=engine,
        store=store,
        on_progress=on_progress,
    )
    finished = list(base)
    for _ in _run_jobs([_job(plan, key, terms, byte_code, store) for plan, key in missing], on_progress):
        for plan, key in keyed[len(finished) - len(base) :]:
            blob = _kept(key, store)
            if blob is None:
                break
            finished.append(Layer(title=plan.title, blob=blob, media_type=terms.codec.media_type))
        on_finished(tuple(finished))
    share.share_results(SHARED, [key for _, key in missing])
    return tuple(
        Layer(title=plan.title, blob=_made(plan, key, store), media_type=terms.codec.media_type) for plan, key in keyed
    )


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
    """All that another process needs to make a layer."""

    plan: LayerPlan
    key: str
    terms: LayerTerms
    byte_code: dict[str, Path]
    store: Path


def _job(plan: LayerPlan, key: str, terms: LayerTerms, byte_code: dict[str, Path], store: Store) -> _LayerJob:
    own = {layout.wheel.sha256 for layout in plan.layouts}
    needed = {wheel: path for wheel, path in byte_code.items() if wheel in own}
    return _LayerJob(plan=plan, key=key, terms=terms, byte_code=needed, store=store.root)


def _run_jobs(jobs: list[_LayerJob], on_progress: Callable[[str], None]) -> Iterator[str]:
    # The largest first, so that no core waits at the end for one that began late; but what is no wheel, in a moment.
    ordered = sorted(jobs, key=lambda job: (bool(job.plan.layouts), -_size(job)))
    titles = _in_parallel(ordered) if sum(map(_size, jobs)) >= PARALLEL else map(_make_layer, ordered)
    for number, title in enumerate(titles, start=1):
        on_progress(f"layer of {title} ({number} of {len(jobs)})")
        yield title


def _size(job: _LayerJob) -> int:
    return sum(layout.size for layout in job.plan.layouts)


def _in_parallel(jobs: list[_LayerJob]) -> Iterator[str]:
    """Make layers in processes of their own, started afresh: this one may have threads, which do not survive a fork."""
    workers = min(len(os.sched_getaffinity(0)), len(jobs))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, begin_worker, (os.getpid(),)) as pool:
        try:
            for future in as_completed([pool.submit(_make_layer, job) for job in jobs]):
                yield future.result()
        except BrokenProcessPool as error:
            raise BuildFailedError(
                "a process that wrote a layer was killed", remedy="look for the kernel's out-of-memory messages: dmesg"
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _make_layer(job: _LayerJob) -> str:
    store, terms = Store(job.store), job.terms
    with store.exclusive(f"layer-{job.key}"):
        if _kept(job.key, store) is None:  # else another build made it while this one waited
            with store.scratch() as scratch:
                with (scratch / "layer").open("wb") as out:
                    entries = entries_of(job.plan, terms.venv, job.byte_code)
                    blob = write_layer(entries, epoch=terms.epoch, out=out, compression=terms.codec)
                _keep(job.key, blob, scratch / "layer", store)
    return job.plan.title


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


def _made(plan: LayerPlan, key: str, store: Store) -> Blob:
    blob = _kept(key, store)
    if blob is None:
        raise BuildFailedError(f"the layer of {plan.title} left the store while it was needed", remedy="run it again")
    return blob


def _keep(key: str, blob: Blob, path: Path, store: Store) -> None:
    store.keep(path, blob.digest.removeprefix("sha256:"))
    store.keep_result("layer", key, asdict(blob))
