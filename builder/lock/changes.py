"""The packages of a lock, world by world, and what differs between two sets of packages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from packaging.utils import canonicalize_name

from builder.document import Document
from builder.lock.model import LockedGit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from builder.lock.model import Lock, LockedDeb, LockedSdist, LockedWheel

World = Literal["debian", "python", "sources"]
Part = Literal["image", "toolchain", "compiler"]
Identity = tuple[World, Part, str]


class PackageState(Document):
    """One package on one side: `version` (None: a local source, which has none before it is built), size in bytes.

    `digest` is the sha256 of its file, where it is known.
    """

    version: str | None = None
    bytes: int | None = None
    digest: str | None = None


class Package(Document):
    """A package of a world; `part` says whether it is in the image or only in the toolchain that compiles for it."""

    world: World
    part: Part
    name: str
    state: PackageState

    @property
    def identity(self) -> Identity:
        """What the same package has on both sides of a comparison."""
        return self.world, self.part, self.name


class PackageChange(Document):
    """A package that differs; `before` is None where it was added, `after` where it was removed."""

    world: World
    part: Part
    name: str
    kind: Literal["added", "removed", "changed"]
    before: PackageState | None = None
    after: PackageState | None = None

    @property
    def place(self) -> str:
        """The world and, but for the image itself, the part."""
        return self.world if self.part == "image" else f"{self.world} ({self.part})"

    @property
    def line(self) -> str:
        """The change in one line, such as `python: numpy 2.0 -> 2.1`."""
        match self.kind:
            case "added":
                return f"{self.place}: + {self.name} {_version(self.after)}"
            case "removed":
                return f"{self.place}: - {self.name} {_version(self.before)}"
            case "changed":
                return f"{self.place}: {self.name} {_version(self.before)} -> {_version(self.after)}"


def packages_of(lock: Lock) -> tuple[Package, ...]:
    """Return every package of a lock, by world, part and name."""
    found = [
        *(_deb(deb, "image") for deb in lock.base_debs),
        *(_deb(deb, "toolchain") for deb in lock.toolchain_debs),
        *(_from_image(name, version) for name, version in (lock.file.base.packages if lock.file.base else {}).items()),
        *(_wheel(wheel, "image") for wheel in lock.wheels),
        *(_wheel(wheel, "toolchain") for wheel in lock.toolchain_wheels),
        *(_wheel(wheel, "compiler") for wheel in lock.compiler_wheels),
        *(_fetched(source) for source in lock.sources.values()),
        *_local(lock),
    ]
    return tuple(sorted(found, key=lambda package: package.identity))


def changes_between(before: Lock | None, after: Lock) -> tuple[PackageChange, ...]:
    """Return what differs between two locks of a recipe; without one before, every package was added."""
    return package_changes(packages_of(before) if before else (), packages_of(after))


def package_changes(before: Iterable[Package], after: Iterable[Package]) -> tuple[PackageChange, ...]:
    """Return the packages that differ, sorted: in version, in their file's digest, or in size where no side has one.

    What only one side knows makes no difference.
    """
    old = {package.identity: package.state for package in before}
    new = {package.identity: package.state for package in after}
    return tuple(
        PackageChange(
            world=world,
            part=part,
            name=name,
            kind=_kind(old.get((world, part, name)), new.get((world, part, name))),
            before=old.get((world, part, name)),
            after=new.get((world, part, name)),
        )
        for world, part, name in sorted({*old, *new})
        if _differs(old.get((world, part, name)), new.get((world, part, name)))
    )


def _kind(old: PackageState | None, new: PackageState | None) -> Literal["added", "removed", "changed"]:
    if old is None:
        return "added"
    return "removed" if new is None else "changed"


def _differs(old: PackageState | None, new: PackageState | None) -> bool:
    if old is None or new is None:
        return True
    if None not in {old.version, new.version} and old.version != new.version:
        return True
    if old.digest is None and new.digest is None:
        return None not in {old.bytes, new.bytes} and old.bytes != new.bytes
    return None not in {old.digest, new.digest} and old.digest != new.digest


def _deb(deb: LockedDeb, part: Part) -> Package:
    state = PackageState(version=deb.version, bytes=deb.size, digest=deb.sha256)
    return Package(world="debian", part=part, name=deb.name, state=state)


def _from_image(name: str, version: str) -> Package:
    return Package(world="debian", part="image", name=name, state=PackageState(version=version))


def _wheel(wheel: LockedWheel, part: Part) -> Package:
    state = PackageState(version=wheel.version, bytes=wheel.size, digest=wheel.sha256)
    return Package(world="python", part=part, name=wheel.name, state=state)


def _fetched(source: LockedSdist | LockedGit) -> Package:
    version = source.commit if isinstance(source, LockedGit) else source.version
    state = PackageState(version=version, digest=source.archive)
    return Package(world="sources", part="image", name=source.name, state=state)


def _local(lock: Lock) -> Iterator[Package]:
    """Yield the packages of the stack that are compiled from folders beside the recipe."""
    wheels = {wheel.name for wheel in lock.wheels}
    for own in lock.file.question.get("python", {}).get("stack", {}):
        name = canonicalize_name(own)
        if name not in wheels and name not in lock.sources:
            yield Package(world="sources", part="image", name=name, state=PackageState())


def _version(state: PackageState | None) -> str:
    version = state.version if state else None
    return version or "(local source)"
