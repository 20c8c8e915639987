"""Where a published image stands: in a registry, or in a folder that was taken along; only proven bytes leave it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from builder.registry.referrers import list_referrers
from builder.registry.transfer import fetch, prove

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from builder.download import Progress
    from builder.registry.client import RegistryClient
    from builder.registry.content import Descriptor, Manifest
    from builder.registry.reference import Repository
    from builder.store import Store


class Shelf(Protocol):
    """What can be read of published images. Every method raises RegistryError, DamagedError for wrong bytes."""

    def find(self, identifier: str) -> Manifest | None:
        """Return the manifest with a digest, or under a tag, or None."""

    def referrers(self, digest: str) -> tuple[Descriptor, ...]:
        """Return what is attached to a manifest."""

    def blob(self, described: Descriptor) -> bytes:
        """Return a small blob."""

    def prove(self, blobs: Iterable[Descriptor], on_progress: Callable[[Progress], None] | None = None) -> None:
        """Read every byte of blobs."""

    def bring(
        self, blobs: Iterable[Descriptor], store: Store, on_progress: Callable[[Progress], None] | None = None
    ) -> None:
        """Bring blobs into a store; those that are there cost nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RegistryShelf:
    """A repository of a registry; with a `store`, blobs that it does not have are kept there when they are proven."""

    client: RegistryClient
    repository: Repository
    store: Store | None = None

    def find(self, identifier: str) -> Manifest | None:
        """Return the manifest with a digest, or under a tag, or None."""
        return self.client.find_manifest(self.repository.at(identifier))

    def referrers(self, digest: str) -> tuple[Descriptor, ...]:
        """Return what is attached to a manifest."""
        return list_referrers(self.client, self.repository, digest)

    def blob(self, described: Descriptor) -> bytes:
        """Return a small blob."""
        return self.client.read_blob(self.repository, described)

    def prove(self, blobs: Iterable[Descriptor], on_progress: Callable[[Progress], None] | None = None) -> None:
        """Read every byte of blobs."""
        wanted = tuple(blobs)
        missing = [blob for blob in wanted if self.store is not None and not self.store.has(blob.sha256)]
        if self.store is not None:
            fetch(self.client, self.repository, missing, self.store, on_progress=on_progress)
        present = [blob for blob in wanted if blob not in missing]
        prove(self.client, self.repository, present, on_progress=on_progress)

    def bring(
        self, blobs: Iterable[Descriptor], store: Store, on_progress: Callable[[Progress], None] | None = None
    ) -> None:
        """Bring blobs into a store; those that are there cost nothing."""
        fetch(self.client, self.repository, blobs, store, on_progress=on_progress)
