"""Images out to a registry and in from one: only what the other side does not have travels."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from builder.build.environment import LOCK_LABEL
from builder.build.image import MANIFEST_TYPE
from builder.build.stored_image import stored_image
from builder.build.uses import note_published
from builder.registry.content import Payload
from builder.registry.platform import platform_manifest
from builder.registry.transfer import fetch, push

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from builder.build.image import Image
    from builder.download import Progress
    from builder.registry.client import RegistryClient
    from builder.registry.reference import Reference, Repository
    from builder.registry.transfer import Pushed
    from builder.store import Store


def image_payloads(image: Image, store: Store) -> tuple[Payload, ...]:
    """Return the config and the layers of an image as bytes that can travel."""
    layers = [
        Payload(
            digest=layer.blob.digest,
            size=layer.blob.size,
            source=store.path(layer.blob.digest.removeprefix("sha256:")),
        )
        for layer in image.layers
    ]
    return (Payload.of(image.config), *layers)


def push_image(
    image: Image,
    reference: Reference,
    store: Store,
    client: RegistryClient,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    sources: Sequence[Repository] = (),
) -> Pushed:
    """Push an image: the blobs that the registry does not have, then the manifest; raises RegistryError.

    `sources` are repositories of the same registry that may have the blobs, from which it can take them. What the lock
    of a pushed image needs stays in the store from then on.
    """
    payloads = image_payloads(image, store)
    pushed = push(client, reference, image.manifest, MANIFEST_TYPE, payloads, sources=sources, on_progress=on_progress)
    lock = json.loads(image.config)["config"].get("Labels", {}).get(LOCK_LABEL)
    if lock:
        note_published(image.manifest_digest, lock, store)
    return pushed


def pull_image(
    reference: Reference,
    store: Store,
    client: RegistryClient,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    architecture: str = "amd64",
) -> Image:
    """Bring an image into the store and return it; of one for several platforms that for Linux on `architecture`.

    Raises RegistryError, or InvalidDocumentError if the parts of the image do not belong together.
    """
    manifest = platform_manifest(client, reference, architecture=architecture)
    fetch(client, reference.repository, (manifest.config, *manifest.layers), store, on_progress=on_progress)
    return stored_image(manifest, store)
