"""The lock as frozen values: the question it answers and every file of the answer by sha256."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from builder.document import Document

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


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


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class LockedWheel:
    """One wheel of a `pylock.toml`, found by file name and sha256; `size` is in bytes."""

    name: str
    version: str
    filename: str
    sha256: str
    size: int


class LockFile(Document):
    """`lock.yaml`: the question as the recipe asked it, and the parts of the answer that PEP 751 does not hold."""

    version: Literal[1] = 1
    question: dict[str, Any]
    debian: DebianLock
    python: dict[str, Sha256]
    tools: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """A whole lock: `lock.yaml`, the wheels of the image and those of the toolchain. `digest` covers all its files."""

    name: str
    file: LockFile
    wheels: tuple[LockedWheel, ...]
    toolchain_wheels: tuple[LockedWheel, ...]
    digest: str

    @property
    def epoch(self) -> int:
        """The clock of everything made from this lock, in seconds since 1970."""
        return self.file.debian.epoch
