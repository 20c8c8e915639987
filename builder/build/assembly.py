"""Wheels and a base -> an image in the engine, found again by a key over everything that goes into it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from builder.build.ahead import Ahead
from builder.build.bytecode import byte_code_key
from builder.build.environment import image_environment, image_labels, image_venv
from builder.build.image import ImageSettings, Layer, assemble, load_image
from builder.build.layerplan import plan_layers
from builder.build.layers import (
    LAYOUT,
    LayerTerms,
    base_layer_key,
    find_base_layer,
    find_layers,
    image_layers,
    layer_key,
    make_layers,
)
from builder.build.owners import settle_owners
from builder.build.papers import image_papers
from builder.build.tarlayer import Blob
from builder.build.wheelfile import WheelInput, read_layout
from builder.document import key_of
from builder.errors import BuildFailedError
from builder.lock.requirements import stack_packages
from builder.lock.target import target_of
from builder.registry.share import NO_SHARE
from builder.store import prove_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from builder.build.image import Image
    from builder.build.layerplan import LayerPlan
    from builder.build.owners import Settled
    from builder.build.venv import Venv
    from builder.build.wheelfile import WheelLayout
    from builder.build.wheels import BuiltWheel
    from builder.engine import Engine
    from builder.lock.model import Lock, LockedWheel
    from builder.lock.target import Target
    from builder.recipe.model import Recipe
    from builder.registry.share import Sharing
    from builder.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagePlan:
    """Everything that goes into an image, which `key` covers, and the tag that it gets in the local engine.

    `base_layers` are those of a base that is an image of a registry; a bootstrapped base is known by its key alone. The
    papers are made of `recipe` and `lock`, which takes a while, so only where layers are.
    """

    name: str
    base_key: str
    wheels: tuple[WheelInput, ...]
    terms: LayerTerms
    settings: ImageSettings
    recipe: Recipe
    lock: Lock
    stack: tuple[str, ...]
    base_layers: tuple[Layer, ...] = ()
    tag: str = "latest"

    def layers(self, layouts: Iterable[WheelLayout]) -> tuple[LayerPlan, ...]:
        """Return the layers to make of the wheels' layouts."""
        return plan_layers(layouts, image_papers(self.recipe, self.lock), self.stack)

    @property
    def key(self) -> str:
        """The key that the finished image is kept under."""
        return key_of(
            {
                "layout": LAYOUT,
                "compressor": self.terms.codec.compressor,
                "base": self.base_key,
                "python": self.terms.venv.python,
                "wheels": [[wheel.filename, wheel.sha256] for wheel in self.wheels],
                "epoch": self.settings.epoch,
                "environment": dict(self.settings.environment),
                "labels": dict(self.settings.labels),
                "papers": [self.recipe.to_plain(), self.lock.digest],
                "stack": list(self.stack),
            }
        )

    @property
    def reference(self) -> str:
        """The tag of the image in the local engine."""
        return f"envbuild/{self.name}:{self.tag}"


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltImage:
    """An image that the engine has: its local tag, its id (the config's digest), its digest in any registry.

    `installed` are the names and versions of all its distributions, `places` the diff ids of the layers that hold them,
    by name in normal form.
    """

    reference: str
    image_id: str
    manifest_digest: str
    installed: tuple[tuple[str, str], ...]
    places: Mapping[str, str] = field(default_factory=dict)


def plan_image(
    recipe: Recipe, lock: Lock, base_key: str, built: tuple[BuiltWheel, ...], store: Store, *, tag: str = "latest"
) -> ImagePlan:
    """Return what the image is made of: the locked wheels and the compiled ones."""
    every: tuple[LockedWheel | BuiltWheel, ...] = (*lock.wheels, *built)
    inputs = [
        WheelInput(
            name=wheel.name,
            version=wheel.version,
            filename=wheel.filename,
            sha256=wheel.sha256,
            path=store.path(wheel.sha256),
        )
        for wheel in every
    ]
    return ImagePlan(
        name=recipe.name,
        base_key=base_key,
        wheels=tuple(sorted(inputs, key=lambda wheel: wheel.name)),
        terms=LayerTerms(
            venv=image_venv(recipe, lock),
            python=base_key,
            epoch=lock.epoch,
            compression=recipe.compression,
        ),
        tag=tag,
        settings=ImageSettings(
            epoch=lock.epoch,
            environment=image_environment(recipe, lock),
            labels=image_labels(recipe, lock),
            workdir="/" if lock.file.base else None,
        ),
        recipe=recipe,
        lock=lock,
        stack=tuple(sorted(map(canonicalize_name, recipe.stack))),
        base_layers=image_layers(lock.file.base) if lock.file.base else (),
    )


def built_image(plan: ImagePlan, engine: Engine, store: Store) -> BuiltImage | None:
    """Return the image that this plan made before, if the engine still has it."""
    record = store.result("image", plan.key)
    if record is None or engine.image_id(plan.reference) != record["image_id"]:
        return None
    return _built(plan, record)


def build_image(
    plan: ImagePlan,
    base: tuple[Layer, ...],
    *,
    engine: Engine,
    store: Store,
    on_progress: Callable[[str], None],
    share: Sharing = NO_SHARE,
) -> BuiltImage:
    """Make the layers that are missing, assemble the image, load it into the engine and record it."""
    layouts = settled_layouts(plan, store).layouts
    plans, codec = plan.layers(layouts), plan.terms.codec
    with Ahead(plan.key, plan.settings.epoch, engine=engine, store=store) as ahead:
        layers = make_layers(
            plans,
            base=base,
            terms=plan.terms,
            engine=engine,
            store=store,
            on_progress=on_progress,
            share=share,
            ahead=ahead,
        )
        image = assemble((*base, *layers), plan.settings)
        on_progress("loading into the engine")
        load_image(image, plan.reference, engine=engine, store=store)
    record = {
        "reference": plan.reference,
        "image_id": image.config_digest,
        "manifest_digest": image.manifest_digest,
        "layers": [
            *([] if plan.base_layers else [base_layer_key(base[0].blob.diff_id.removeprefix("sha256:"), codec)]),
            *(layer_key(item, plan.terms) for item in plans),
        ],
        "byte_code": [
            byte_code_key(layout, plan.terms.venv, plan.base_key)
            for layout in layouts
            if layout.sources(plan.terms.venv)
        ],
        "places": {
            canonicalize_name(layout.wheel.name): layer.blob.diff_id
            for item, layer in zip(plans, layers, strict=True)
            for layout in item.layouts
        },
    }
    store.keep_result("image", plan.key, record)
    return _built(plan, record)


def find_image(plan: ImagePlan, store: Store) -> Image | None:
    """Return the image of a plan if all its layers are in the store; nothing is made.

    Wheels are laid out to know the layers of a plan, which takes a moment, so the layers are remembered by its key.
    """
    kept = store.result("assembled", plan.key)
    layers = _layers_in(kept, store) if kept is not None else None
    if layers is None:
        layers = _find_layers(plan, store)
        if layers is None:
            return None
        store.keep_result("assembled", plan.key, {"layers": [asdict(layer) for layer in layers]})
    return assemble(layers, plan.settings)


def has_packages(plan: ImagePlan, store: Store) -> bool:
    """Whether the layers of all packages are in the store: what is left of the image is made in moments."""
    plans = plan_layers(settled_layouts(plan, store).layouts, stack=plan.stack)
    return None not in find_layers(plans, plan.terms, store)


def _layers_in(record: Mapping[str, Any], store: Store) -> tuple[Layer, ...] | None:
    layers = tuple(Layer(**{**plain, "blob": Blob(**plain["blob"])}) for plain in record["layers"])
    there = all(store.has(layer.blob.digest.removeprefix("sha256:")) for layer in layers)
    return layers if there else None


def _find_layers(plan: ImagePlan, store: Store) -> tuple[Layer, ...] | None:
    base = _found_base(plan, store)
    plans = plan.layers(settled_layouts(plan, store).layouts)
    blobs = find_layers(plans, plan.terms, store)
    done = [
        Layer(title=item.title, blob=blob, media_type=plan.terms.codec.media_type)
        for item, blob in zip(plans, blobs, strict=True)
        if blob is not None
    ]
    if not base or len(done) < len(blobs):
        return None
    return *base, *done


def _found_base(plan: ImagePlan, store: Store) -> tuple[Layer, ...]:
    """Return the layers of the base if they are all in the store."""
    if plan.base_layers:
        here = all(store.has(layer.blob.digest.removeprefix("sha256:")) for layer in plan.base_layers)
        return plan.base_layers if here else ()
    rootfs, codec = store.result("base", plan.base_key), plan.terms.codec
    blob = find_base_layer(rootfs["sha256"], store, codec) if rootfs else None
    return (Layer(title="base", blob=blob, media_type=codec.media_type),) if blob else ()


def settled_layouts(plan: ImagePlan, store: Store) -> Settled:
    """Return where the files of a plan's wheels go, each path to one wheel; raise BuildFailedError if they cannot."""
    target = target_of(plan.recipe, plan.lock.file.base)
    try:
        return _laid_out(plan.wheels, plan.terms.venv, stack_packages(plan.recipe), target)
    except BuildFailedError:
        prove_all(store, [wheel.sha256 for wheel in plan.wheels])  # what is damaged here looks like a broken wheel
        raise


@lru_cache(maxsize=1)
def _laid_out(wheels: tuple[WheelInput, ...], venv: Venv, asked: tuple[str, ...], target: Target) -> Settled:
    """Lay out wheels, which takes a moment and is asked for before an image is made, while it is, and after."""
    return settle_owners((read_layout(wheel, venv) for wheel in wheels), asked, target)


def _built(plan: ImagePlan, record: Mapping[str, Any]) -> BuiltImage:
    return BuiltImage(
        reference=plan.reference,
        image_id=record["image_id"],
        manifest_digest=record["manifest_digest"],
        installed=tuple((wheel.name, wheel.version) for wheel in plan.wheels),
        places=record["places"],
    )
