"""What an image is made of, in bytes: its packages as they are installed, its layers as they travel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.build.assembly import settled_layouts
from builder.build.base import find_base
from builder.build.duplicates import find_duplicates
from builder.build.layers import find_base_layer, find_layers
from builder.build.stage import find_plan
from builder.document import Document
from builder.errors import UsageError
from builder.sizes import shown_bytes

if TYPE_CHECKING:
    from builder.build.assembly import ImagePlan
    from builder.build.base import RootFilesystem
    from builder.build.duplicates import Duplicate
    from builder.build.tarlayer import Blob
    from builder.build.wheelfile import WheelLayout
    from builder.lock.model import Lock
    from builder.recipe.source import RecipeFile
    from builder.store import Store


class PackageSize(Document):
    """A distribution: the bytes of its installed files, without byte code, and how many files they are."""

    name: str
    version: str
    bytes: int
    files: int


class LayerSize(Document):
    """A layer: the bytes that travel (None: not made here yet) and those that they unpack to, byte code included."""

    title: str
    compressed: int | None
    unpacked: int | None


class LibraryCopy(Document):
    """One copy of a library that is there more than once."""

    owner: str
    path: str
    bytes: int


class LibraryTwice(Document):
    """A shared library with several copies; `soname` is the loader's name for it, without a bundler's hash."""

    soname: str
    copies: tuple[LibraryCopy, ...]


class SizeReport(Document):
    """An image in bytes: packages and layers, each the biggest first, and libraries that are in it more than once."""

    recipe: str
    packages: tuple[PackageSize, ...]
    layers: tuple[LayerSize, ...]
    twice: tuple[LibraryTwice, ...]

    @property
    def installed(self) -> int:
        """The bytes of all packages."""
        return sum(package.bytes for package in self.packages)

    @property
    def compressed(self) -> int | None:
        """The bytes of all layers as they travel; None if one of them is not made yet."""
        return _total([layer.compressed for layer in self.layers])

    @property
    def unpacked(self) -> int | None:
        """The bytes of all layers unpacked; None if one of them is not made yet."""
        return _total([layer.unpacked for layer in self.layers])

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each library that is there more than once."""
        return tuple(_warning(each) for each in self.twice)


def measure_image(source: RecipeFile, locked: Lock, store: Store) -> SizeReport:
    """Return the sizes of an image from what the store has; raise UsageError if its wheels are not all there."""
    plan = find_plan(source, locked, store)
    if plan is None:
        raise UsageError(
            f"{source.path}: the wheels of this image are not all in the store, so it cannot be measured",
            remedy=f"run `envbuild build {source.path}`",
        )
    layouts = settled_layouts(plan, store).layouts
    base = find_base(locked.file.debian, store) if locked.file.debian else None
    packages = [
        PackageSize(name=layout.wheel.name, version=layout.wheel.version, bytes=layout.size, files=len(layout.files))
        for layout in layouts
    ]
    duplicates = find_duplicates(layouts, store.path(base.sha256) if base else None, store)
    return SizeReport(
        recipe=source.recipe.name,
        packages=tuple(sorted(packages, key=lambda package: (-package.bytes, package.name))),
        layers=_layers(plan, layouts, base, store),
        twice=tuple(_twice(each) for each in duplicates),
    )


def _layers(
    plan: ImagePlan, layouts: tuple[WheelLayout, ...], base: RootFilesystem | None, store: Store
) -> tuple[LayerSize, ...]:
    plans = plan.layers(layouts)
    blobs = find_layers(plans, plan.terms, store)
    below = find_base_layer(base.sha256, store, plan.terms.codec) if base else None
    layers = [
        *([_layer(layer.title, layer.blob) for layer in plan.base_layers] or [_layer("Debian base", below)]),
        *(_layer(each.title, blob) for each, blob in zip(plans, blobs, strict=True)),
    ]
    return tuple(sorted(layers, key=lambda layer: (-(layer.compressed or 0), layer.title)))


def _layer(title: str, blob: Blob | None) -> LayerSize:
    if blob is None:
        return LayerSize(title=title, compressed=None, unpacked=None)
    return LayerSize(title=title, compressed=blob.size, unpacked=blob.unpacked)


def _twice(duplicate: Duplicate) -> LibraryTwice:
    copies = tuple(LibraryCopy(owner=copy.owner, path=copy.path, bytes=copy.size) for copy in duplicate.copies)
    return LibraryTwice(soname=duplicate.soname, copies=copies)


def _warning(twice: LibraryTwice) -> str:
    copies = "; ".join(f"{copy.path} ({copy.owner}, {shown_bytes(copy.bytes)})" for copy in twice.copies)
    return f"{twice.soname} is in the image {len(twice.copies)} times: {copies}"


def _total(sizes: list[int | None]) -> int | None:
    return None if None in sizes else sum(size for size in sizes if size is not None)
