"""Every version that is known of a stack: the lock's, the overrides', the recipe's own, those that sglang pins."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from packaging.utils import canonicalize_name

from builder.preflight.conditions import newest, public_version
from builder.preflight.knowledge.tables import SglangRelease, cuda_table, package_table, sglang_table, torch_table
from builder.recipe.targets import GpuTarget, find_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.preflight.vocabulary import FactValue
    from builder.recipe.model import Index, Package, Recipe

VARIANT = re.compile(r"cu(\d+)(\d)\b")
MaybeFacts = dict[str, "FactValue | None"]


class WheelLike(Protocol):
    """What preflight reads of a locked wheel; `size` is in bytes."""

    @property
    def name(self) -> str:
        """The package's name."""

    @property
    def version(self) -> str:
        """The package's version."""

    @property
    def filename(self) -> str:
        """The wheel's file name."""

    @property
    def size(self) -> int:
        """The wheel's size in bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LockFacts:
    """What a lock adds to a recipe: versions by canonical name, file names, Debian versions, bytes of the wheels."""

    versions: Mapping[str, str]
    filenames: tuple[str, ...]
    debian: Mapping[str, str]
    wheel_bytes: int


def lock_facts(wheels: Iterable[WheelLike], debian: Mapping[str, str]) -> LockFacts:
    """Return the facts of a lock: `wheels` of the image, `debian` are versions by package of base and toolchain."""
    all_wheels = tuple(wheels)
    return LockFacts(
        versions={canonicalize_name(wheel.name): wheel.version for wheel in all_wheels},
        filenames=tuple(wheel.filename for wheel in all_wheels),
        debian=dict(debian),
        wheel_bytes=sum(wheel.size for wheel in all_wheels),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pins:
    """Every version that is known, by canonical name; `release` is what is known of that sglang."""

    recipe: Recipe
    target: GpuTarget
    stack: Mapping[str, Package]
    versions: Mapping[str, str]
    sglang: str | None
    release: SglangRelease | None
    lock: LockFacts | None

    @property
    def cuda_variant(self) -> str | None:
        """Torch's build, such as cu130: by its version, its index, or the default of its series."""
        version = self.versions.get("torch", "")
        if found := VARIANT.search(version.partition("+")[2]):
            return found.group()
        index = self.index_of("torch")
        if index is not None:
            found = VARIANT.search(index.url)
            return found.group() if found else None
        series = torch_table().series.get(series_of(version))
        return series.default if series else None

    @property
    def needed_cuda(self) -> str | None:
        """The newest CUDA that the driver must run: of torch, the runtime's wheel and the image's own compiler."""
        return needed_cuda([cuda_of(self.cuda_variant), runtime_cuda(self.versions)], self.recipe)

    def index_of(self, name: str) -> Index | None:
        """Return the recipe's own index of a package, or None if it comes from the default one."""
        indexes = self.recipe.indexes.values()
        return next(
            (index for index in indexes if name in {str(canonicalize_name(package)) for package in index.packages}),
            None,
        )


def read_pins(recipe: Recipe, lock: LockFacts | None) -> Pins:
    """Return every version that is known: the lock's, else the overrides', the stack's, those that sglang pins."""
    stack = {str(canonicalize_name(name)): package for name, package in recipe.stack.items()}
    wished = {name: package.version for name, package in stack.items() if package.version is not None}
    overrides = {str(canonicalize_name(name)): override.version for name, override in recipe.overrides.items()}
    sglang = _sglang_version(stack.get("sglang"), lock)
    release = sglang_table().releases.get(sglang or "")
    pinned = _pinned_by(release) if release is not None else {}
    known: dict[str, str | None] = {**pinned, **wished, **overrides, **(lock.versions if lock else {})}
    versions = {name: version for name, version in known.items() if version is not None}
    return Pins(
        recipe=recipe,
        target=find_target(recipe.target.gpu),
        stack=stack,
        versions=versions,
        sglang=sglang,
        release=release,
        lock=lock,
    )


def series_of(version: str) -> str:
    """Return the first two numbers of a version, or an empty text."""
    parsed = public_version(version)
    return f"{parsed.major}.{parsed.minor}" if parsed else ""


def cuda_of(variant: str | None) -> str | None:
    """Return the CUDA version of a build such as cu130: 13.0."""
    found = VARIANT.fullmatch(variant or "")
    return f"{found.group(1)}.{found.group(2)}" if found else None


def _sglang_version(package: Package | None, lock: LockFacts | None) -> str | None:
    if package is not None and package.commit is not None:
        releases = sglang_table().releases.items()
        return next((version for version, release in releases if release.commit == package.commit), None)
    if package is not None and package.version is not None:
        return package.version
    return lock.versions.get("sglang") if lock else None


def _pinned_by(release: SglangRelease) -> dict[str, str]:
    flashinfer = dict.fromkeys(("flashinfer-python", "flashinfer-cubin"), release.flashinfer)
    kernel = {release.kernel.name: release.kernel.version}
    return {"torch": release.torch, "transformers": release.transformers, **flashinfer, **kernel}


def is_compiled(name: str, package: Package) -> bool:
    """Say whether a package of the stack is compiled here, by its canonical name."""
    packages = package_table()
    if name in packages.pure_python:
        return False
    return package.build is not None or (name in packages.needs_nvcc and package.git is not None)


def runtime_cuda(versions: Mapping[str, str]) -> str | None:
    """Return the CUDA version of the runtime's wheel among versions by canonical name, or None."""
    names = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12")
    return next((series_of(versions[name]) for name in names if name in versions), None)


def needed_cuda(runtimes: Iterable[str | None], recipe: Recipe) -> str | None:
    """Return the newest CUDA that the driver must run: of the runtimes, or of the compiler in the image itself."""
    versions = [version for version in (*runtimes, recipe.image_compiler) if version]
    return newest(versions) if versions else None


def driver_floor(cuda: str | None) -> str | None:
    """Return the oldest driver that runs a CUDA, which is that of its major version."""
    return cuda_table().driver_floors.get(cuda.partition(".")[0]) if cuda else None
