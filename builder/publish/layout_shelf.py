"""A published image and its proof in an OCI layout, a folder or a tar file: taken along, verified without a network."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.build.layout import blob_name, put_layout
from builder.document import CHUNK
from builder.errors import InvalidDocumentError
from builder.publish.cosign_tags import signature_tag
from builder.publish.envelope import BUNDLE_TYPE
from builder.registry.connection import LARGEST_DOCUMENT
from builder.registry.content import EMPTY, REFERENCE_NAME, Manifest, Payload
from builder.registry.faults import DamagedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from builder.build.layout import Layout
    from builder.download import Progress
    from builder.publish.examination import Examined
    from builder.publish.shelf import Shelf
    from builder.registry.content import Descriptor
    from builder.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutShelf:
    """A layout with one image and what is attached to it; its index lists them all."""

    layout: Layout
    listed: tuple[Descriptor, ...]

    @classmethod
    def of(cls, layout: Layout) -> LayoutShelf:
        """Return the shelf of an open layout; raises InvalidDocumentError if it is none."""
        return cls(layout=layout, listed=layout.index().manifests)

    @property
    def image(self) -> Manifest:
        """The one image; raises InvalidDocumentError if the layout holds none or several."""
        found = [item for item in self.listed if not item.artifact_type and not _name(item).endswith(".sig")]
        if len(found) != 1:
            raise InvalidDocumentError(f"{self.layout.place} holds {len(found)} images, not one")
        return self._manifest(found[0])

    def find(self, identifier: str) -> Manifest | None:
        """Return the manifest with a digest, or under a tag, or None."""
        found = [item for item in self.listed if identifier in {item.digest, _name(item)}]
        return self._manifest(found[0]) if found else None

    def referrers(self, digest: str) -> tuple[Descriptor, ...]:
        """Return what is attached to the image; a layout holds no other."""
        return tuple(item for item in self.listed if item.artifact_type and item.digest != digest)

    def blob(self, described: Descriptor) -> bytes:
        """Return a small blob."""
        pieces: list[bytes] = []
        self._read(described, pieces.append)
        return b"".join(pieces)

    def prove(self, blobs: Iterable[Descriptor], on_progress: Callable[[Progress], None] | None = None) -> None:  # noqa: ARG002
        """Read every byte of blobs."""
        for described in blobs:
            self._read(described, lambda _: None)

    def bring(
        self,
        blobs: Iterable[Descriptor],
        store: Store,
        on_progress: Callable[[Progress], None] | None = None,  # noqa: ARG002
    ) -> None:
        """Bring blobs into a store; those that are there cost nothing."""
        for described in blobs:
            if not store.has(described.sha256):
                with store.scratch() as scratch, self.layout.open(blob_name(described.digest)) as source:
                    with (scratch / "blob").open("wb") as out:
                        shutil.copyfileobj(source, out, CHUNK)
                    store.add(scratch / "blob", described.sha256)

    def _manifest(self, described: Descriptor) -> Manifest:
        if described.size > LARGEST_DOCUMENT:
            raise DamagedError(f"{self.layout.place} lists a manifest of {described.size} bytes")
        return Manifest(
            media_type=described.media_type, data=self.blob(described), source=f"{self.layout.place}@{described.digest}"
        )

    def _read(self, described: Descriptor, on_piece: Callable[[bytes], object]) -> None:
        seen, left = hashlib.sha256(), described.size
        with self.layout.open(blob_name(described.digest)) as file:
            while left >= 0 and (piece := file.read(CHUNK)):
                left -= len(piece)
                seen.update(piece)
                on_piece(piece)
        if left or f"sha256:{seen.hexdigest()}" != described.digest:
            raise DamagedError(f"{self.layout.place} holds other bytes than {described.digest}")


def take_along(shelf: Shelf, examined: Examined, tag: str | None, store: Store, target: Path) -> None:
    """Write an image and what is proven of it as a layout; raises RegistryError, UsageError."""
    image, attested = examined.manifest, examined.attestations.proven
    listed = {item.digest: item for item in shelf.referrers(image.digest)}
    blobs = (image.config, *image.layers)
    shelf.bring(blobs, store)
    payloads = [Payload.of(image.data), Payload.of(EMPTY)]
    payloads += [Payload(digest=blob.digest, size=blob.size, source=store.sound(blob.sha256)) for blob in blobs]
    payloads += [Payload.of(data) for item in attested for data in (item.manifest.data, item.bundle)]
    entries = [replace(image.descriptor, annotations={REFERENCE_NAME: tag} if tag else {})]
    entries += [replace(listed[item.manifest.digest], artifact_type=BUNDLE_TYPE) for item in attested]
    signature = shelf.find(signature_tag(image.digest))
    if signature is not None:
        entries.append(replace(signature.descriptor, annotations={REFERENCE_NAME: signature_tag(image.digest)}))
        files = [shelf.blob(described) for described in (signature.config, *signature.layers)]
        payloads += [Payload.of(data) for data in (signature.data, *files)]
    put_layout(entries, payloads, target)


def _name(described: Descriptor) -> str:
    return described.annotations.get(REFERENCE_NAME, "")
