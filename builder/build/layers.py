"""Wheels -> layers: each a function of its wheels, the base's Python and the lock's clock, and made only once."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from builder.build.bytecode import byte_code_key, compile_wheels
from builder.build.compression import COMPRESSIONS, GZIP, Compression, CompressionName
from builder.build.image import ImageSettings, Layer, assemble, chain_ids, load_image
from builder.build.making import LayerJob, Making, by_urgency, keep_layer, kept_layer, worth_sending
from builder.build.papers import papers_key
from builder.build.tarlayer import Blob, compress_tar
from builder.document import key_of
from builder.registry.share import NO_SHARE, Shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from builder.build.ahead import Ahead
    from builder.build.layerplan import LayerPlan
    from builder.build.venv import Venv
    from builder.engine import Engine
    from builder.lock.model import LockedImage
    from builder.registry.share import Sharing
    from builder.store import Store

LAYOUT = 3  # raise when the same wheels shall become other layers
SHARED = Shared(kind="layer", fields={"digest": str, "size": int, "diff_id": str, "unpacked": int}, file="digest")


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
        blob = kept_layer(key, store)
        if blob is None:
            with store.scratch() as scratch, store.path(rootfs_sha256).open("rb") as tar:
                with (scratch / "layer").open("wb") as out:
                    blob = compress_tar(tar, out, compression)
                seen = blob.diff_id.removeprefix("sha256:")
                if seen != rootfs_sha256:
                    raise store.damaged(rootfs_sha256, seen)
                keep_layer(key, blob, scratch / "layer", store)
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

    `base` are the layers with the Python that compiles byte code; `ahead` sends what the engine lacks, while it is made
    or as the store has it. Raises BuildFailedError, DamagedFileError of a file in the store.
    """
    keyed = [(plan, layer_key(plan, terms)) for plan in plans]
    share.fetch_results(SHARED, [key for _, key in keyed if kept_layer(key, store) is None])
    every = [
        LayerJob(number=number, plan=plan, key=key, stored=kept_layer(key, store) is not None)
        for number, (plan, key) in enumerate(keyed, start=len(base))
    ]

    def base_image() -> str:
        return load_base(base, epoch=terms.epoch, engine=engine, store=store)

    def compile_them(on_compiled: Callable[[str, Path], None]) -> None:
        compile_wheels(
            [layout for job in jobs if not job.stored for layout in job.plan.layouts],
            venv=terms.venv,
            python=terms.python,
            base_image=base_image,
            engine=engine,
            store=store,
            on_progress=on_progress,
            on_compiled=on_compiled,
        )

    making = Making(terms, store, ahead)
    sent = _begin(ahead, every, base, base_image, making) if ahead is not None else range(0)
    jobs = by_urgency([job for job in every if not job.stored or job.number in sent])
    if jobs:
        making.run(jobs, compile_them, on_progress)
    share.share_results(SHARED, [job.key for job in every if not job.stored])
    return tuple(making.layer(job) for job in every)


def _begin(
    ahead: Ahead, jobs: Sequence[LayerJob], base: tuple[Layer, ...], base_image: Callable[[], str], making: Making
) -> range:
    """Begin to send an image's layers upon those that the engine has; return the numbers of those that it gets."""
    known = list(base)
    for layer in map(making.known, jobs):
        if layer is None:
            break
        known.append(layer)
    there = ahead.there(tuple(known))
    if len(there) < len(base) and worth_sending(jobs):
        base_image()
        there = ahead.there(base)
    if len(there) < len(base):
        return range(0)
    sent = worth_sending(jobs[len(there) - len(base) :])
    ahead.begin(there, len(sent))
    return range(len(there), len(there) + len(sent))


def base_reference(base: tuple[Layer, ...]) -> str:
    """Return the local tag of a base."""
    return base_tag(chain_ids(base)[-1])


def find_base_layer(rootfs_sha256: str, store: Store, compression: Compression = GZIP) -> Blob | None:
    """Return the layer of a root filesystem if it was made before."""
    return kept_layer(base_layer_key(rootfs_sha256, compression), store)


def find_layers(plans: Iterable[LayerPlan], terms: LayerTerms, store: Store) -> tuple[Blob | None, ...]:
    """Return the planned layers that were made before, in order."""
    return tuple(kept_layer(layer_key(plan, terms), store) for plan in plans)


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
                    **({"overlaid": [file.path for file in layout.overlaid]} if layout.overlaid else {}),
                }
                for layout in plan.layouts
            ],
            "installer": version("installer"),
            "compressor": terms.codec.compressor,
            **({"papers": papers_key(plan.papers)} if plan.papers else {}),
        }
    )
