"""What the engine calls an image: the config's digest, or under the containerd image store the manifest's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.engine import CONFIG_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def in_containerd(image: Mapping[str, Any]) -> bool:
    """Whether an image, as the engine lists or inspects it, lies in the containerd image store.

    Only there does it have a descriptor (Docker API 1.48, `Descriptor`).
    """
    return bool(image.get("Descriptor"))


def config_of(image: Mapping[str, Any]) -> str | None:
    """Return the config's digest that an archive of envbuild's gave an image of the containerd image store."""
    digest = ((image.get("Descriptor") or {}).get("annotations") or {}).get(CONFIG_ANNOTATION)
    return None if digest is None else str(digest)


def id_of(image: Mapping[str, Any]) -> str:
    """Return the id of an image as the engine lists or inspects it: what `Engine.image_id` calls it."""
    return config_of(image) or str(image["Id"])


def name_of(image_id: str, images: Iterable[Mapping[str, Any]]) -> str:
    """Return what the engine itself calls the image with an id, given all its images."""
    return next((str(image["Id"]) for image in images if config_of(image) == image_id), image_id)
