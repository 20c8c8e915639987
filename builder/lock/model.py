"""The lock as frozen values: the question it answers and every file of the answer by sha256."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from builder.document import Document

if TYPE_CHECKING:
    from collections.abc import Mapping

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
GitHash = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]


class LockedDeb(Document):
    """One Debian binary package; `filename` is its path in the archive's pool, `size` is in bytes."""

    name: str
    version: str
    architecture: str
    archive: Literal["debian", "debian-security"]
    filename: str
    sha256: Sha256
    size: int


class DebianRelease(Document):
    """One signed Release file that the packages were chosen from; `date` is ISO 8601 in UTC."""

    archive: Literal["debian", "debian-security"]
    suite: str
    date: str
    packages_sha256: Sha256


class DebianLock(Document):
    """The Debian world: what the base is bootstrapped from, and what the toolchain adds to it."""

    suite: str
    architecture: str = "amd64"
    releases: tuple[DebianRelease, ...]
    base: tuple[LockedDeb, ...]
    toolchain: tuple[LockedDeb, ...] = ()

    @property
    def epoch(self) -> int:
        """The newest Release date in seconds since 1970: the clock of everything made from this lock."""
        return max(int(datetime.fromisoformat(release.date).timestamp()) for release in self.releases)


class LockedLayer(Document):
    """One layer of a base image, from the bottom: its bytes as they travel, its `diff_id`, its bytes unpacked."""

    digest: Digest
    size: int
    diff_id: Digest
    unpacked: int
    media_type: str


class LockedImage(Document):
    """A base image for one platform: which it is, what its config says, what was read from its file system.

    `created` is ISO 8601 in UTC, `user` who its programs run as (None: root), `python` the path of the interpreter,
    `glibc` the minor version of glibc 2; `packages` are the versions of its Debian or Ubuntu packages by name, empty
    where it has no such list.
    """

    image: str
    digest: Digest
    platform: Literal["linux/amd64"] = "linux/amd64"
    created: str
    layers: Annotated[tuple[LockedLayer, ...], Field(min_length=1)]
    environment: dict[str, str] = {}
    labels: dict[str, str] = {}
    user: str | None = None
    python: str
    glibc: int
    packages: dict[str, str] = {}

    @property
    def reference(self) -> str:
        """The image by its digest, as registries and Dockerfiles name it."""
        name, _, tag = self.image.rpartition(":")
        return f"{name if name and '/' not in tag else self.image}@{self.digest}"

    @property
    def epoch(self) -> int:
        """When the image was made, in seconds since 1970: the clock of everything made from this lock."""
        return max(0, int(datetime.fromisoformat(self.created).timestamp()))


class LockedPatch(Document):
    """A patch file by its path from the recipe."""

    file: str
    sha256: Sha256


class LockedSubmodule(Document):
    """A submodule of a git source, `path` from the root of the repository."""

    path: str
    url: str
    commit: GitHash


class ProvenFix(Document):
    """A change that the recipe asks for, and what showed that the source has it."""

    id: str
    proof: str


class LockedSdist(Document):
    """A source distribution; `size` is in bytes.

    `archive` is the sha256 of the canonical tar of the unpacked and patched source.
    """

    kind: Literal["sdist"] = "sdist"
    name: str
    version: str
    filename: str
    sha256: Sha256
    size: int
    patches: tuple[LockedPatch, ...] = ()
    fixes: tuple[ProvenFix, ...] = ()
    archive: Sha256

    @property
    def subdirectory(self) -> str:
        """The folder of the archive that holds the package."""
        return "."


class LockedGit(Document):
    """A commit of a git repository; `tree` is the hash of its tree object.

    `archive` is the sha256 of the canonical tar of all its files, submodules included and patches applied.
    """

    kind: Literal["git"] = "git"
    name: str
    url: str
    commit: GitHash
    tree: GitHash
    subdirectory: str = "."
    submodules: tuple[LockedSubmodule, ...] = ()
    patches: tuple[LockedPatch, ...] = ()
    fixes: tuple[ProvenFix, ...] = ()
    archive: Sha256


LockedSource = Annotated[LockedSdist | LockedGit, Field(discriminator="kind")]


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class LockedWheel:
    """One wheel of a `pylock.toml`, found by file name and sha256; `size` is in bytes."""

    name: str
    version: str
    filename: str
    sha256: str
    size: int


class LockFile(Document):
    """`lock.yaml`: the question as the recipe asked it, and the parts of the answer that PEP 751 does not hold.

    The base is bootstrapped (`debian`) or an image (`base`).
    `sources` are the fetched sources of what is compiled, None where there are none.
    """

    version: Literal[1] = 1
    question: dict[str, Any]
    debian: DebianLock | None = None
    base: LockedImage | None = None
    python: dict[str, Sha256]
    sources: tuple[LockedSource, ...] | None = None
    tools: dict[str, str]

    @model_validator(mode="after")
    def _one_base(self) -> LockFile:
        if (self.debian is None) == (self.base is None):
            raise ValueError("the base is either `debian` or `base`, an image")
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """A whole lock: `lock.yaml`, the wheels of the image, of the toolchain and of a CUDA compiler of its own.

    `digest` covers all its files; `pylocks` are those besides `lock.yaml`, by name.
    """

    name: str
    file: LockFile
    wheels: tuple[LockedWheel, ...]
    toolchain_wheels: tuple[LockedWheel, ...]
    digest: str
    compiler_wheels: tuple[LockedWheel, ...] = ()
    pylocks: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def sources(self) -> dict[str, LockedSdist | LockedGit]:
        """The fetched sources by the package's name."""
        return {source.name: source for source in self.file.sources or ()}

    @property
    def epoch(self) -> int:
        """The clock of everything made from this lock, in seconds since 1970."""
        base = self.file.debian or self.file.base
        return base.epoch if base else 0

    @property
    def base_debs(self) -> tuple[LockedDeb, ...]:
        """The Debian packages that the base is bootstrapped from."""
        return self.file.debian.base if self.file.debian else ()

    @property
    def toolchain_debs(self) -> tuple[LockedDeb, ...]:
        """The Debian packages that the toolchain adds to the base."""
        return self.file.debian.toolchain if self.file.debian else ()

    @property
    def interpreter_folder(self) -> str:
        """Where the base has its Python."""
        return posixpath.dirname(self.file.base.python) if self.file.base else "/usr/bin"
