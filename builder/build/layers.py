"""Wheels -> layers: each a function of its wheels, the base's Python and the lock's clock, and made only once."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from builder.build.bytecode import byte_code_files, byte_code_key, compile_wheels
from builder.build.image import ImageSettings, Layer, assemble, load_image
from builder.build.tarlayer import COMPRESSOR, Blob, File, Folder, Link, compress_tar, write_layer
from builder.build.wheelfile import record_hash, record_of
from builder.document import key_of
from builder.errors import BuildFailedError
from builder.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from builder.build.tarlayer import Entry
    from builder.build.venv import Venv
    from builder.build.wheelfile import WheelLayout
    from builder.engine import Engine

LAYOUT = 1  # raise when the same wheels shall become other layers
LARGE = 5_000_000
BUCKETS = 16
MOST_LARGE = 100
"""With the base, the environment and the buckets this stays below the 125 layers that overlayfs can stack."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPlan:
    """A layer to make: its name in the image's history, and the wheels in it (none: the environment itself)."""

    title: str
    layouts: tuple[WheelLayout, ...] = ()


def plan_layers(layouts: Iterable[WheelLayout]) -> tuple[LayerPlan, ...]:
    """Return the layers of an environment from the bottom: the environment, each large wheel, buckets of small ones.

    An engine extracts anew whatever lies above a changed layer, so the largest come first. A small wheel's bucket
    follows from its name alone, so another package does not move it. Raises BuildFailedError if two wheels want to
    own one path with different bytes.
    """
    ordered = sorted(layouts, key=lambda layout: (-layout.size, layout.wheel.name))
    _check_owners(ordered)
    large = [layout for layout in ordered[:MOST_LARGE] if layout.size >= LARGE]
    buckets: dict[int, list[WheelLayout]] = {}
    for layout in ordered[len(large) :]:
        buckets.setdefault(_bucket(layout.wheel.name), []).append(layout)
    return (
        LayerPlan(title="environment"),
        *(LayerPlan(title=f"{layout.wheel.name} {layout.wheel.version}", layouts=(layout,)) for layout in large),
        *(_bucket_plan(buckets[number]) for number in sorted(buckets)),
    )


def make_base_layer(rootfs_sha256: str, *, store: Store) -> Layer:
    """Return the layer of a root filesystem, an uncompressed tar in the store: its diff id is the tar's sha256."""
    key = key_of({"layout": LAYOUT, "tar": rootfs_sha256, "compressor": COMPRESSOR})
    with store.exclusive(f"layer-{key}"):
        blob = _kept(key, store)
        if blob is None:
            with store.scratch() as scratch, store.path(rootfs_sha256).open("rb") as tar:
                with (scratch / "layer").open("wb") as out:
                    blob = compress_tar(tar, out)
                _keep(key, blob, scratch / "layer", store)
    return Layer(title="base", blob=blob)


def make_layers(
    plans: Iterable[LayerPlan],
    *,
    base: Layer,
    venv: Venv,
    python: str,
    epoch: int,
    engine: Engine,
    store: Store,
    on_progress: Callable[[str], None],
) -> tuple[Layer, ...]:
    """Make the planned layers, in parallel over the cores, or find them in the store.

    `base` is the layer with the Python that compiles byte code, `python` a text that changes whenever that Python does
    (as the sha256 of its packages), `epoch` the time of all files in seconds since 1970. Raises BuildFailedError.
    """
    keyed = [(plan, layer_key(plan, venv=venv, python=python, epoch=epoch)) for plan in plans]
    missing = [(plan, key) for plan, key in keyed if _kept(key, store) is None]
    byte_code = compile_wheels(
        [layout for plan, _ in missing for layout in plan.layouts],
        venv=venv,
        python=python,
        base_image=lambda: load_base(base, epoch=epoch, engine=engine, store=store),
        engine=engine,
        store=store,
        on_progress=on_progress,
    )
    _run_jobs(
        [_job(plan, key, venv=venv, epoch=epoch, byte_code=byte_code, store=store) for plan, key in missing],
        on_progress,
    )
    return tuple(Layer(title=plan.title, blob=_made(plan, key, store)) for plan, key in keyed)


def load_base(base: Layer, *, epoch: int, engine: Engine, store: Store) -> str:
    """Load the base alone into the engine and return its reference there."""
    reference = f"envbuild/base:{base.blob.diff_id.removeprefix('sha256:')[:16]}"
    load_image(assemble((base,), ImageSettings(epoch=epoch)), reference, engine=engine, store=store)
    return reference


def layer_key(plan: LayerPlan, *, venv: Venv, python: str, epoch: int) -> str:
    """Return the key of a layer: everything that can change its bytes.

    A wheel without Python files does not depend on the base's Python, so its layer serves every base.
    """
    return key_of(
        {
            "layout": LAYOUT,
            "venv": asdict(venv),
            "epoch": epoch,
            "wheels": [
                {
                    "filename": layout.wheel.filename,
                    "sha256": layout.wheel.sha256,
                    "byte_code": byte_code_key(layout, venv, python) if layout.sources(venv) else None,
                }
                for layout in plan.layouts
            ],
            "installer": version("installer"),
            "compressor": COMPRESSOR,
        }
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _LayerJob:
    """All that another process needs to make a layer."""

    plan: LayerPlan
    key: str
    venv: Venv
    epoch: int
    byte_code: dict[str, Path]
    store: Path


def _job(plan: LayerPlan, key: str, *, venv: Venv, epoch: int, byte_code: dict[str, Path], store: Store) -> _LayerJob:
    own = {layout.wheel.sha256 for layout in plan.layouts}
    needed = {wheel: path for wheel, path in byte_code.items() if wheel in own}
    return _LayerJob(plan=plan, key=key, venv=venv, epoch=epoch, byte_code=needed, store=store.root)


def _run_jobs(jobs: list[_LayerJob], on_progress: Callable[[str], None]) -> None:
    if not jobs:
        return
    workers = min(len(os.sched_getaffinity(0)), len(jobs))
    # A fresh process per worker: this one may have threads, which do not survive a fork.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(_make_layer, job) for job in jobs]
        try:
            for number, future in enumerate(as_completed(running), start=1):
                on_progress(f"layer of {future.result()} ({number} of {len(jobs)})")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _make_layer(job: _LayerJob) -> str:
    store = Store(job.store)
    with store.exclusive(f"layer-{job.key}"):
        if _kept(job.key, store) is None:  # else another build made it while this one waited
            with store.scratch() as scratch:
                with (scratch / "layer").open("wb") as out:
                    blob = write_layer(entries_of(job.plan, job.venv, job.byte_code), epoch=job.epoch, out=out)
                _keep(job.key, blob, scratch / "layer", store)
    return job.plan.title


def entries_of(plan: LayerPlan, venv: Venv, byte_code: dict[str, Path]) -> list[Entry]:
    """Return what a layer holds: the environment's own files, or the files of its wheels with byte code and RECORD."""
    if not plan.layouts:
        settings = File(path=f"{venv.prefix}/pyvenv.cfg", size=len(venv.settings), content=venv.settings)
        links = [Link(path=path, target=target) for path, target in venv.links.items()]
        return [settings, *links, Folder(path=venv.site_packages)]
    entries: list[Entry] = []
    for layout in plan.layouts:
        compiled = byte_code_files(layout, venv, byte_code.get(layout.wheel.sha256))
        entries += [*layout.files, *compiled, record_of(layout, venv, [file.path for file in compiled])]
    return entries


def _bucket(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % BUCKETS


def _bucket_plan(layouts: list[WheelLayout]) -> LayerPlan:
    ordered = sorted(layouts, key=lambda layout: layout.wheel.name)
    title = ", ".join(f"{layout.wheel.name} {layout.wheel.version}" for layout in ordered)
    return LayerPlan(title=title, layouts=tuple(ordered))


def _check_owners(layouts: Iterable[WheelLayout]) -> None:
    """Refuse two wheels that own one path with different bytes: which one wins would depend on their order."""
    owners: dict[str, tuple[WheelLayout, File]] = {}
    for layout in layouts:
        for file in layout.files:
            other, theirs = owners.setdefault(file.path, (layout, file))
            if other is not layout and not _same(file, theirs):
                raise BuildFailedError(
                    f"{other.wheel.filename} and {layout.wheel.filename} both own {file.path}, with different bytes",
                    remedy="one environment cannot hold both: drop one, or patch it and build it from source",
                )


def _same(one: File, other: File) -> bool:
    return (one.size, one.mode, record_hash(one)) == (other.size, other.mode, record_hash(other))


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
    store.add(path, blob.digest.removeprefix("sha256:"))
    store.keep_result("layer", key, asdict(blob))
