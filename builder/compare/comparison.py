"""Two sides -> what differs between them: packages with their sizes, layers, settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from builder.document import Document
from builder.lock.changes import Package, PackageChange, PackageState, World, package_changes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.compare.side import Side
    from builder.engine import ImageFacts, ImageLayer

WORLDS: tuple[World, ...] = ("debian", "python", "sources")


class Total(Document):
    """All packages of one world: how many there are on each side, and their bytes where all are known."""

    world: World
    packages_a: int
    packages_b: int
    bytes_a: int | None
    bytes_b: int | None


class LayerFacts(Document):
    """A layer of an image: its diff id, what the image's history calls it, its unpacked bytes where they are known."""

    diff_id: str
    title: str
    bytes: int | None


class SettingChange(Document):
    """A variable or label that differs; None where it is missing."""

    kind: Literal["environment", "label"]
    name: str
    a: str | None = None
    b: str | None = None


class ImageComparison(Document):
    """Layers by diff id, from the bottom; the engine keeps and sends a shared one once."""

    id_a: str
    id_b: str
    shared: tuple[LayerFacts, ...]
    only_a: tuple[LayerFacts, ...]
    only_b: tuple[LayerFacts, ...]
    settings: tuple[SettingChange, ...]


class Comparison(Document):
    """What differs between A and B. `packages` is None where one side cannot say them, for the reason in `silence`.

    Bytes are of fetched files for locks and of installed ones for images; where a lock meets an image, `comparable`
    is false and no difference of bytes means anything.
    """

    a: str
    b: str
    comparable: bool
    packages: tuple[PackageChange, ...] | None
    totals: tuple[Total, ...]
    images: ImageComparison | None = None
    silence: str | None = None

    @property
    def same(self) -> bool:
        """Whether nothing differs that could be compared."""
        images = self.images
        return not self.packages and (images is None or not (images.only_a or images.only_b or images.settings))


def compare(a: Side, b: Side) -> Comparison:
    """Return what differs between two sides; the toolchain is compared only where both are locks."""
    images = _images(a.image, b.image) if a.image and b.image else None
    silence = "; ".join(f"{side.name}: {side.silence}" for side in (a, b) if side.packages is None)
    one, other = _aligned(a, b)
    return Comparison(
        a=a.name,
        b=b.name,
        comparable=a.measure == b.measure,
        packages=None if silence else package_changes(one, other),
        totals=() if silence else tuple(_total(world, one, other) for world in WORLDS),
        images=images,
        silence=silence or None,
    )


def _aligned(a: Side, b: Side) -> tuple[tuple[Package, ...], tuple[Package, ...]]:
    one, other = a.packages or (), b.packages or ()
    if a.image is None and b.image is None:
        return one, other
    return _seen_as(one, other), _seen_as(other, one)


def _seen_as(packages: Iterable[Package], other: Iterable[Package]) -> tuple[Package, ...]:
    """Return what of one side an image can show: no toolchain, and a package that the other builds among `sources`."""
    built = {package.name for package in other if package.world == "sources"}
    return tuple(
        package.model_copy(update={"world": "sources"}) if _is_built(package, built) else package
        for package in packages
        if package.part == "image"
    )


def _is_built(package: Package, built: set[str]) -> bool:
    return package.world == "python" and package.name in built


def _total(world: World, a: Iterable[Package], b: Iterable[Package]) -> Total:
    one = [package.state for package in a if package.world == world]
    other = [package.state for package in b if package.world == world]
    return Total(world=world, packages_a=len(one), packages_b=len(other), bytes_a=_sum(one), bytes_b=_sum(other))


def _sum(states: Iterable[PackageState]) -> int | None:
    sizes = [state.bytes for state in states]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _images(a: ImageFacts, b: ImageFacts) -> ImageComparison:
    ids_a, ids_b = ({layer.diff_id for layer in facts.layers} for facts in (a, b))
    return ImageComparison(
        id_a=a.image_id,
        id_b=b.image_id,
        shared=tuple(_layer(layer) for layer in b.layers if layer.diff_id in ids_a),
        only_a=tuple(_layer(layer) for layer in a.layers if layer.diff_id not in ids_b),
        only_b=tuple(_layer(layer) for layer in b.layers if layer.diff_id not in ids_a),
        settings=(
            *_settings("environment", a.environment, b.environment),
            *_settings("label", a.labels, b.labels),
        ),
    )


def _layer(layer: ImageLayer) -> LayerFacts:
    return LayerFacts(diff_id=layer.diff_id, title=layer.title, bytes=layer.size)


def _settings(
    kind: Literal["environment", "label"], a: Mapping[str, str], b: Mapping[str, str]
) -> tuple[SettingChange, ...]:
    return tuple(
        SettingChange(kind=kind, name=name, a=a.get(name), b=b.get(name))
        for name in sorted({*a, *b})
        if a.get(name) != b.get(name)
    )
