"""Fetching the wheels of a lock: only file name and sha256 are known, the user's index says where each file is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from builder.download import DEFAULT_PATIENCE, Download, fetch_all, shown
from builder.errors import ResolveError
from builder.lock.index import INDEX_REMEDY, find_file, index_endpoint, index_of, mirrored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from builder.download import Patience, Progress
    from builder.lock.index import IndexFile
    from builder.recipe.model import Index
    from builder.settings import Settings
    from builder.store import Store

LOOK_UPS = 16  # project pages asked for at a time


class LockedFile(Protocol):
    """A wheel or an sdist of a lock; `size` is in bytes."""

    @property
    def name(self) -> str:
        """The project's normalized name."""

    @property
    def filename(self) -> str:
        """The file's name in the index."""

    @property
    def sha256(self) -> str:
        """The hash of its bytes."""

    @property
    def size(self) -> int:
        """Its bytes."""


def fetch_wheels(
    wheels: Iterable[LockedFile],
    store: Store,
    settings: Settings,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    indexes: Mapping[str, Index] | None = None,
    patience: Patience = DEFAULT_PATIENCE,
) -> None:
    """Bring every wheel (or sdist) into the store; those that are there cost nothing, not even a look-up.

    `indexes` are the recipe's: a package listed there is looked for nowhere else. Raise ResolveError if an index cannot
    be asked, no longer has a file, or has another file under its name.
    """
    missing = tuple(wheel for wheel in wheels if not store.has(wheel.sha256))
    default = index_endpoint(settings)

    tied = mirrored(indexes or {}, settings)

    def look_up(wheel: LockedFile) -> Download:
        file = find_wheel(wheel, index_of(wheel.name, tied) or default, settings, patience=patience)
        return Download(url=file.url, sha256=wheel.sha256, size=wheel.size, label=wheel.filename)

    with ThreadPoolExecutor(LOOK_UPS) as pool:
        downloads = tuple(pool.map(look_up, missing))
    fetch_all(downloads, store, settings, on_progress, patience=patience)


def find_wheel(
    wheel: LockedFile, index: str, settings: Settings, *, patience: Patience = DEFAULT_PATIENCE
) -> IndexFile:
    """Return where an index keeps a locked wheel; raise ResolveError if it has none, or another file by that name."""
    file = find_file(wheel.name, wheel.filename, index, settings, patience=patience)
    if file is None:
        raise ResolveError(
            f"the package index {shown(index)} does not have {wheel.filename} (any more)",
            remedy=f"{INDEX_REMEDY}; if the file was withdrawn: envbuild lock --update {wheel.name} RECIPE",
        )
    if file.sha256 not in {None, wheel.sha256}:
        raise ResolveError(
            f"the package index {shown(index)} has another file under the name {wheel.filename}",
            remedy="do not use that index until you know who changed the file",
            evidence=(f"locked sha256 {wheel.sha256}", f"the index says {file.sha256}"),
        )
    return file
