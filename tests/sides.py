"""Locks and facts of images made by hand, for tests that compare or explain them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.document import canonical_yaml, sha256_bytes
from builder.lock.lockfile import LOCK, PYLOCK, TOOLCHAIN
from builder.lock.model import DebianLock, DebianRelease, LockedDeb, LockedGit, LockedWheel, LockFile
from builder.lock.pylock import write_pylock
from builder.lock.writing import write_lock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def deb(name: str, version: str, *, size: int = 1000, sha256: str | None = None) -> LockedDeb:
    """A locked Debian package; its hash follows from its name and version."""
    return LockedDeb(
        name=name,
        version=version,
        architecture="amd64",
        archive="debian",
        filename=f"pool/{name}.deb",
        sha256=sha256 or sha256_bytes(f"{name} {version}".encode()),
        size=size,
    )


def wheel(name: str, version: str, *, size: int = 1000, sha256: str | None = None) -> LockedWheel:
    """A locked wheel; its hash follows from its name and version."""
    return LockedWheel(
        name=name,
        version=version,
        filename=f"{name}-{version}-py3-none-any.whl",
        sha256=sha256 or sha256_bytes(f"{name} {version}".encode()),
        size=size,
    )


def debian_lock(*base: LockedDeb, toolchain: tuple[LockedDeb, ...] = ()) -> DebianLock:
    """A Debian world of the suite trixie."""
    release = DebianRelease(archive="debian", suite="trixie", date="2026-01-01T00:00:00Z", packages_sha256="b" * 64)
    return DebianLock(suite="trixie", releases=(release,), base=base, toolchain=toolchain)


def lock_files(
    question: Mapping[str, Any],
    debian: DebianLock,
    wheels: tuple[LockedWheel, ...],
    toolchain: tuple[LockedWheel, ...] = (),
    sources: tuple[LockedGit, ...] | None = None,
) -> dict[str, bytes]:
    """The files of a lock that answers a question."""
    files = {PYLOCK: write_pylock(wheels, python="3.13")}
    if toolchain:
        files[TOOLCHAIN] = write_pylock(toolchain, python="3.13")
    hashes = {name: sha256_bytes(content) for name, content in files.items()}
    file = LockFile(question=dict(question), debian=debian, python=hashes, sources=sources, tools={"uv": "1"})
    return {**files, LOCK: canonical_yaml(file.to_plain())}


def write_lock_files(folder: Path, *args: Any, **kwargs: Any) -> None:
    """Write the files of a lock to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_lock(folder, lock_files(*args, **kwargs))
