"""An image that was not assembled here: its config and layers in the store -> the same value as an assembled one."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from builder.build.image import TITLE, Image, Layer
from builder.build.tarlayer import BLOCK, Blob
from builder.errors import InvalidDocumentError
from builder.registry.layer import unpacked, unpacking_fails

if TYPE_CHECKING:
    from builder.registry.content import Descriptor, Manifest
    from builder.store import Store


def stored_image(manifest: Manifest, store: Store) -> Image:
    """Return the image of a manifest whose blobs are in the store; every layer is unpacked once, against its diff id.

    Raises InvalidDocumentError if the parts do not belong together.
    """
    source = manifest.source
    config = store.path(manifest.config.sha256).read_bytes()
    diff_ids, titles = _layers_of(config, source)
    if len(diff_ids) != len(manifest.layers):
        raise InvalidDocumentError(f"{source} has {len(manifest.layers)} layers, its config names {len(diff_ids)}")
    if len(titles) != len(diff_ids):
        titles = [layer.digest for layer in manifest.layers]
    layers = tuple(
        Layer(title=title, blob=_proven(layer, diff_id, source, store), media_type=layer.media_type)
        for layer, diff_id, title in zip(manifest.layers, diff_ids, titles, strict=True)
    )
    return Image(layers=layers, config=config, manifest=manifest.data)


def _layers_of(config: bytes, source: str) -> tuple[list[str], list[str]]:
    """Return the diff ids that a config names, and what its history says of each layer."""
    try:
        value = json.loads(config)
        diff_ids = [str(diff_id) for diff_id in value["rootfs"]["diff_ids"]]
        history = [entry for entry in value.get("history") or () if not entry.get("empty_layer")]
        return diff_ids, [str(entry.get("created_by", "")).removeprefix(TITLE) for entry in history]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidDocumentError(f"the config of {source} is not that of an image") from None


def _proven(layer: Descriptor, diff_id: str, source: str, store: Store) -> Blob:
    seen, size = hashlib.sha256(), 0
    try:
        with store.path(layer.sha256).open("rb") as file:
            content = unpacked(layer, file, source)
            while piece := content.read(BLOCK):
                seen.update(piece)
                size += len(piece)
    except unpacking_fails() as error:
        raise InvalidDocumentError(f"{source}: the layer {layer.digest} is damaged: {error}") from error
    if f"sha256:{seen.hexdigest()}" != diff_id:
        raise InvalidDocumentError(f"{source}: the layer {layer.digest} does not unpack to {diff_id}")
    return Blob(digest=layer.digest, size=layer.size, diff_id=diff_id, unpacked=size)
