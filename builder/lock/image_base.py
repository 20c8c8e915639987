"""A base that is an image of a registry: by tag or digest in, exact layers and facts out; fetched into the store."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from builder.errors import InvalidDocumentError
from builder.lock.image_files import read_image_files
from builder.lock.model import LockedImage, LockedLayer
from builder.registry.client import RegistryClient
from builder.registry.content import Descriptor
from builder.registry.platform import platform_manifest
from builder.registry.reference import Reference, parse_reference, parse_repository
from builder.registry.transfer import fetch

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.download import Progress
    from builder.settings import Settings
    from builder.store import Store

PLACE = "base.image"
UNDATED = "1970-01-01T00:00:00+00:00"  # for an image whose config says no time


def resolve_image(
    image: str, python: str, store: Store, settings: Settings, on_progress: Callable[[Progress], None] | None = None
) -> LockedImage:
    """Return what a reference means today for linux/amd64, its layers in the store.

    Raise RegistryError where it cannot be had, ResolveError where it has no such Python or no glibc.
    """
    with RegistryClient(settings) as client:
        reference = mirrored_reference(parse_reference(image), settings)
        manifest = platform_manifest(client, reference)
        blobs = (manifest.config, *manifest.layers)
        fetch(client, reference.repository, blobs, store, on_progress=on_progress)
    config = _config(store.path(manifest.config.sha256).read_bytes(), manifest.source)
    files = read_image_files(manifest.layers, manifest.source, store)
    diff_ids = [diff_id for diff_id, _ in files.layers]
    if diff_ids != config["rootfs"]["diff_ids"]:
        raise InvalidDocumentError(f"{manifest.source}: its layers do not unpack to what its config names", remedy="")
    run = config.get("config") or {}
    return LockedImage(
        image=image.partition("@")[0],
        digest=manifest.digest,
        created=_time(config.get("created")),
        layers=tuple(
            LockedLayer(
                digest=layer.digest, size=layer.size, diff_id=diff_id, unpacked=unpacked, media_type=layer.media_type
            )
            for layer, (diff_id, unpacked) in zip(manifest.layers, files.layers, strict=True)
        ),
        environment=dict(line.split("=", 1) for line in run.get("Env") or () if "=" in line),
        labels={str(name): str(value) for name, value in (run.get("Labels") or {}).items()},
        user=run.get("User") or None,
        python=files.interpreter(python, image, PLACE),
        glibc=files.glibc_minor(image, PLACE),
        packages=files.packages,
    )


def fetch_image(
    base: LockedImage, store: Store, settings: Settings, on_progress: Callable[[Progress], None] | None = None
) -> None:
    """Bring the layers of a locked base into the store; those that are there cost nothing."""
    layers = tuple(
        Descriptor(media_type=layer.media_type, digest=layer.digest, size=layer.size) for layer in base.layers
    )
    missing = tuple(layer for layer in layers if not store.has(layer.sha256))
    if missing:
        with RegistryClient(settings) as client:
            reference = mirrored_reference(parse_reference(base.reference), settings)
            fetch(client, reference.repository, missing, store, on_progress=on_progress)


def mirrored_reference(reference: Reference, settings: Settings) -> Reference:
    """Return where this machine asks for an image: at the mirror that `ENVBUILD_REGISTRY_MIRRORS` names, or itself."""
    repository = reference.repository
    mirror = settings.registry_mirrors.get(repository.registry)
    if mirror is None:
        return reference
    return replace(reference, repository=parse_repository(f"{mirror.rstrip('/')}/{repository.name}"))


def _config(data: bytes, source: str) -> dict[str, Any]:
    try:
        config = json.loads(data)
        if (config["os"], config["architecture"]) != ("linux", "amd64"):
            raise InvalidDocumentError(f"{source} is for {config['os']}/{config['architecture']}, not linux/amd64")
        list(config["rootfs"]["diff_ids"])
    except (ValueError, KeyError, TypeError):
        raise InvalidDocumentError(f"the config of {source} is not that of an image") from None
    return dict(config)


def _time(created: str | None) -> str:
    """Return when an image was made, to the second; configs carry nanoseconds, which nothing else does."""
    try:
        moment = datetime.fromisoformat((created or UNDATED).partition(".")[0].removesuffix("Z"))
    except ValueError:
        return UNDATED
    return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC).isoformat()
