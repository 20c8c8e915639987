"""Where the store is needed: the locks of every project folder that was built from, and those of published images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.build.uses import USE, known_workspaces, published_locks
from builder.document import canonical_json, hashes_in
from builder.lock.lockfile import read_lock
from builder.lock.model import LockedGit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.lock.model import Lock
    from builder.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Roots:
    """What is needed by itself: digests of locks, every sha256 that their files mention, and the living projects.

    `repositories` are the addresses of git sources.
    """

    locks: frozenset[str]
    mentioned: frozenset[str]
    workspaces: frozenset[str]
    repositories: frozenset[str]


def find_roots(store: Store) -> Roots:
    """Read the locks of all known projects; raise InvalidDocumentError for one that cannot be read.

    A damaged lock stops the collection: what it needs is not known.
    """
    locks: set[str] = set()
    mentioned: set[str] = set()
    workspaces: set[str] = set()
    repositories: set[str] = set()
    for key, root in known_workspaces(store):
        for folder in _lock_folders(root):
            lock = read_lock(folder, folder.name)
            if lock is None:
                continue
            workspaces.add(key)
            locks.add(lock.digest)
            repositories |= _addresses(lock)
            for path in folder.iterdir():
                mentioned |= hashes_in(path.read_bytes()) if path.is_file() else frozenset()
    locks.update(published_locks(store))
    for digest in locks:
        mentioned |= hashes_in(canonical_json(store.result(USE, digest) or {}))
    return Roots(
        locks=frozenset(locks),
        mentioned=frozenset(mentioned),
        workspaces=frozenset(workspaces),
        repositories=frozenset(repositories),
    )


def _addresses(lock: Lock) -> set[str]:
    found = [source for source in lock.sources.values() if isinstance(source, LockedGit)]
    return {source.url for source in found} | {module.url for source in found for module in source.submodules}


def _lock_folders(root: Path) -> Iterator[Path]:
    folder = root / "lockfiles"
    if folder.is_dir():
        yield from sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
