"""Which image of a name is for this kind of machine, where the name stands for several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import RegistryError
from builder.registry.content import INDEX_TYPES

if TYPE_CHECKING:
    from builder.registry.client import RegistryClient
    from builder.registry.content import Manifest
    from builder.registry.reference import Reference


def platform_manifest(client: RegistryClient, reference: Reference, *, architecture: str = "amd64") -> Manifest:
    """Return the manifest of an image for Linux on `architecture`; raises RegistryError if there is none."""
    manifest = client.manifest(reference)
    if manifest.media_type not in INDEX_TYPES:
        return manifest
    for entry, plain in zip(manifest.manifests, manifest.plain["manifests"], strict=True):
        platform = plain.get("platform") or {}
        if (platform.get("os"), platform.get("architecture")) == ("linux", architecture):
            return client.manifest(reference.repository.at(entry.digest))
    raise RegistryError(
        f"{reference} has no image for linux/{architecture}", remedy="name an image that is made for this machine"
    )
