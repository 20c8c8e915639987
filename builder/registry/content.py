"""What a registry keeps: descriptors, manifests and the bytes that are pushed under their digest."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from builder.document import canonical_json, sha256_bytes, sha256_file
from builder.registry.faults import DamagedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFEST_TYPES = (OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_INDEX)
INDEX_TYPES = (OCI_INDEX, DOCKER_INDEX)
OCTETS = "application/octet-stream"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
LAYOUT_MARKER = "oci-layout"  # the files of an image layout (image-layout.md)
LAYOUT_VERSION = b'{"imageLayoutVersion":"1.0.0"}'
LAYOUT_INDEX = "index.json"
REFERENCE_NAME = "org.opencontainers.image.ref.name"
EMPTY = b"{}"  # the config of an artifact that has none (OCI image specification 1.1, manifest.md)


@dataclass(frozen=True, kw_only=True, slots=True)
class Descriptor:
    """How a manifest names content (OCI image specification 1.1, descriptor.md); `size` is in bytes."""

    media_type: str
    digest: str
    size: int
    artifact_type: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """The digest as the store names it."""
        return self.digest.removeprefix("sha256:")

    def to_plain(self) -> dict[str, Any]:
        """Return the descriptor as it stands in a manifest."""
        plain = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
            "artifactType": self.artifact_type,
            "annotations": dict(self.annotations),
        }
        return {name: value for name, value in plain.items() if value not in (None, {})}


def index_of(entries: Iterable[Descriptor]) -> bytes:
    """Return an image index (OCI image specification 1.1, image-index.md) that lists some content."""
    plain = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry.to_plain() for entry in entries]}
    return canonical_json(plain)


def descriptor_from(plain: Any, *, source: str) -> Descriptor:  # noqa: ANN401 - any JSON value
    """Read a descriptor of a manifest; raises DamagedError if it is none. `source` names the manifest."""
    try:
        digest, size, annotations = plain["digest"], plain["size"], plain.get("annotations") or {}
        well = is_digest(digest) and isinstance(size, int) and size >= 0 and isinstance(annotations, dict)
        media_type, artifact_type = str(plain["mediaType"]), plain.get("artifactType")
    except (KeyError, TypeError, AttributeError):
        well = False
    if not well:
        raise DamagedError(f"{source} holds a descriptor without a valid media type, sha256 digest and size")
    return Descriptor(
        media_type=media_type, digest=digest, size=size, artifact_type=artifact_type, annotations=annotations
    )


def is_digest(text: Any) -> bool:  # noqa: ANN401 - any JSON value
    """Say whether this is a sha256 digest, the only kind that this project knows."""
    if not isinstance(text, str) or len(text) != 71 or not text.startswith("sha256:"):
        return False
    return set(text.removeprefix("sha256:")) <= set("0123456789abcdef")


def digest_of(data: bytes) -> str:
    """Return the digest of some bytes."""
    return f"sha256:{sha256_bytes(data)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """A manifest or an index as a registry sent it, its digest proven; `source` says where it came from."""

    media_type: str
    data: bytes
    source: str

    @property
    def digest(self) -> str:
        """The digest of the bytes."""
        return digest_of(self.data)

    @property
    def descriptor(self) -> Descriptor:
        """How another manifest names this one."""
        return Descriptor(media_type=self.media_type, digest=self.digest, size=len(self.data))

    @property
    def plain(self) -> dict[str, Any]:
        """The manifest as JSON; raises DamagedError if it is none."""
        try:
            value = json.loads(self.data)
        except (ValueError, RecursionError) as error:
            raise DamagedError(f"the manifest {self.source} is not JSON") from error
        if not isinstance(value, dict):
            raise DamagedError(f"the manifest {self.source} is no JSON object")
        return value

    @property
    def config(self) -> Descriptor:
        """The config of an image or an artifact."""
        return descriptor_from(self.plain.get("config"), source=self.source)

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        """The layers of an image, or the files of an artifact."""
        return self._descriptors("layers")

    @property
    def manifests(self) -> tuple[Descriptor, ...]:
        """The manifests that an index lists."""
        return self._descriptors("manifests")

    def _descriptors(self, name: str) -> tuple[Descriptor, ...]:
        listed = self.plain.get(name, [])
        if not isinstance(listed, list):
            raise DamagedError(f"the manifest {self.source} holds no list of {name}")
        return tuple(descriptor_from(item, source=self.source) for item in listed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Payload:
    """Bytes that shall be in a registry under their digest: in a file, or in memory. `size` is in bytes."""

    digest: str
    size: int
    source: Path | bytes

    @classmethod
    def of(cls, data: bytes) -> Payload:
        """Return the payload of bytes in memory."""
        return cls(digest=digest_of(data), size=len(data), source=data)

    def open(self) -> BinaryIO:
        """Open the bytes for reading."""
        return self.source.open("rb") if isinstance(self.source, Path) else io.BytesIO(self.source)

    def is_intact(self) -> bool:
        """Say whether the bytes still have their digest; reads all of them."""
        seen = sha256_file(self.source) if isinstance(self.source, Path) else sha256_bytes(self.source)
        return f"sha256:{seen}" == self.digest
