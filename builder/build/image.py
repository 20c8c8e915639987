"""Layers -> image: config, manifest, and the archive that an engine loads; all bytes are functions of the inputs."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from builder.build.compression import GZIP
from builder.document import CHUNK, canonical_json, sha256_bytes, sha256_file
from builder.engine import CONFIG_ANNOTATION, chain_of
from builder.errors import BuildFailedError, EngineError
from builder.registry.content import LAYOUT_INDEX, LAYOUT_MARKER, LAYOUT_VERSION, Descriptor, index_of
from builder.registry.layer import file_of, open_unpacked, unpacking_fails

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from builder.build.tarlayer import Blob
    from builder.engine import Engine
    from builder.store import Store

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
UNPACKED_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
CONTAINERD_NAME = "io.containerd.image.name"  # containerd, core/images/annotations.go
TITLE = "envbuild: "  # before a layer's title in the history


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A layer of an image: what its history calls it, and its blob in the store."""

    title: str
    blob: Blob
    media_type: str = GZIP.media_type


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSettings:
    """What an image says of itself; `epoch`, in seconds since 1970, is when it was created."""

    epoch: int
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ("python3",)
    entrypoint: tuple[str, ...] = ()
    workdir: str | None = None
    architecture: str = "amd64"


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """An assembled image (OCI image specification 1.1): its layers from the bottom, its config and its manifest."""

    layers: tuple[Layer, ...]
    config: bytes
    manifest: bytes

    @property
    def config_digest(self) -> str:
        """The digest of the config: the image's id, however its layers are packed."""
        return f"sha256:{sha256_bytes(self.config)}"

    @property
    def manifest_digest(self) -> str:
        """The digest of the manifest: the image's name in a registry."""
        return f"sha256:{sha256_bytes(self.manifest)}"


def assemble(layers: tuple[Layer, ...], settings: ImageSettings) -> Image:
    """Return the image of some layers; nothing is read or written."""
    config = canonical_json(_config(layers, settings))
    packed = [{"mediaType": layer.media_type, "digest": layer.blob.digest, "size": layer.blob.size} for layer in layers]
    return Image(layers=layers, config=config, manifest=_manifest(config, packed))


def _manifest(config: bytes, layers: list[dict[str, Any]]) -> bytes:
    described = {"mediaType": CONFIG_TYPE, "digest": f"sha256:{sha256_bytes(config)}", "size": len(config)}
    return canonical_json({"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": described, "layers": layers})


def load_image(image: Image, reference: str, *, engine: Engine, store: Store) -> None:
    """Load an image into the engine under a reference, sending only the layers that the engine does not have.

    Raises EngineError if the engine then has another image under that reference.
    """
    if engine.image_id(reference) == image.config_digest:
        return
    send_image(image, reference, engine=engine, store=store, present=engine.chain_ids())
    seen = engine.image_id(reference)
    if seen != image.config_digest:
        raise EngineError(
            f"the engine loaded {reference} as {seen or 'nothing'} instead of {image.config_digest}",
            remedy="another process may have used the same reference; run it again",
        )


def send_image(
    image: Image,
    reference: str,
    *,
    engine: Engine,
    store: Store,
    present: frozenset[str],
    through: Callable[[Iterator[bytes]], Iterator[bytes]] = iter,
) -> None:
    """Load an image without the layers whose chain id is in `present`; `through` sees the archive's pieces pass.

    The engine looks for those layers at the end, when another process may have removed the only image that had them:
    then the image is sent again, whole. Raises what the engine's `load` raises.
    """
    try:
        engine.load(through(docker_archive(image, reference, store=store, present=present)))
    except (BuildFailedError, EngineError):
        if present.intersection(chain_ids(image.layers)) <= engine.chain_ids():
            raise
        engine.load(through(docker_archive(image, reference, store=store, present=frozenset())))


def docker_archive(image: Image, reference: str, *, store: Store, present: frozenset[str]) -> Iterator[bytes]:
    """Yield the archive that `docker load` reads piece by piece, without layers whose chain id is in `present`.

    The layers are sent unpacked: an engine unpacks one at a time, on one core and far slower than isal, and one before
    23.0 does not know zstd. `reference` has the form NAMESPACE/NAME:TAG. Raises DamagedFileError before the end of a
    layer whose file is damaged.
    """
    names = layer_names(image.layers)
    sent = set()
    for layer, name, chain_id in zip(image.layers, names, chain_ids(image.layers), strict=True):
        if chain_id not in present and name not in sent:
            sent.add(name)
            yield from tar_pieces(name, unpacked_layer(layer, store), layer.blob.unpacked)
    yield from archive_papers(image, reference, names)


def layer_names(layers: Iterable[Layer]) -> list[str]:
    """Return what the layers are called in a docker-archive."""
    return [f"{layer.blob.diff_id.removeprefix('sha256:')}.tar" for layer in layers]


def archive_papers(image: Image, reference: str, names: list[str]) -> Iterator[bytes]:
    """Yield the end of an archive: what the image is, with the names of its layers' files in the archive.

    It is said twice: in the form of `docker save`, and as an image layout of unpacked layers (OCI image specification
    1.1, image-layout.md). The containerd image store reads the second, and finds layers that it has by their diff ids;
    to it the name of a file means nothing.
    """
    config_name = f"{image.config_digest.removeprefix('sha256:')}.json"
    entry = [{"Config": config_name, "RepoTags": [reference], "Layers": names}]
    manifest = _unpacked_manifest(image)
    described = Descriptor(
        media_type=MANIFEST_TYPE,
        digest=f"sha256:{sha256_bytes(manifest)}",
        size=len(manifest),
        annotations={CONTAINERD_NAME: f"docker.io/{reference}", CONFIG_ANNOTATION: image.config_digest},
    )
    yield from tar_bytes("manifest.json", canonical_json(entry))
    yield from tar_bytes(config_name, image.config)
    yield from tar_bytes(f"{described.sha256}.manifest", manifest)
    yield from tar_bytes(LAYOUT_INDEX, index_of([described]))
    yield from tar_bytes(LAYOUT_MARKER, LAYOUT_VERSION)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _unpacked_manifest(image: Image) -> bytes:
    """Return the manifest of an image as the engine gets it: of the same config, its layers unpacked."""
    layers = [
        {"mediaType": UNPACKED_LAYER_TYPE, "digest": layer.blob.diff_id, "size": layer.blob.unpacked}
        for layer in image.layers
    ]
    return _manifest(image.config, layers)


def unpacked_layer(layer: Layer, store: Store) -> Iterator[bytes]:
    """Yield the tar of a layer piece by piece; raise DamagedFileError before its end if the layer's file is damaged."""
    sha256 = layer.blob.digest.removeprefix("sha256:")
    content = open_unpacked(file_of(store.read(sha256)), layer.media_type)
    if content is None:
        raise EngineError(f"{layer.title}: a layer of the type {layer.media_type} cannot be unpacked here")
    try:
        while piece := content.read(CHUNK):
            yield piece
    except unpacking_fails():
        path = store.path(sha256)
        raise store.damaged(sha256, sha256_file(path) if path.is_file() else None) from None


def chain_ids(layers: tuple[Layer, ...]) -> tuple[str, ...]:
    """Return the chain id of each layer: the name of it on top of those below."""
    return chain_of(layer.blob.diff_id for layer in layers)


def tar_bytes(name: str, data: bytes) -> Iterator[bytes]:
    """Yield a member of a tar archive, of fixed time and owner, that holds `data`."""
    yield _header(name, len(data)) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def tar_pieces(name: str, pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield a member of a tar archive, of fixed time and owner, that holds some bytes, `size` of them together."""
    yield _header(name, size)
    yield from pieces
    yield bytes(-size % tarfile.BLOCKSIZE)


def tar_file(name: str, path: Path, size: int) -> Iterator[bytes]:
    """Yield a member of a tar archive, of fixed time and owner, that holds the `size` bytes of a file."""
    with path.open("rb") as file:
        yield from tar_pieces(name, iter(lambda: file.read(CHUNK), b""), size)


def _config(layers: tuple[Layer, ...], settings: ImageSettings) -> dict[str, Any]:
    created = datetime.fromtimestamp(settings.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    run = {
        "Env": [f"{name}={value}" for name, value in settings.environment.items()],
        "Labels": dict(settings.labels),
        "Cmd": list(settings.command),
        "Entrypoint": list(settings.entrypoint),
        "WorkingDir": settings.workdir,
    }
    return {
        "created": created,
        "architecture": settings.architecture,
        "os": "linux",
        "config": {name: value for name, value in run.items() if value},
        "rootfs": {"type": "layers", "diff_ids": [layer.blob.diff_id for layer in layers]},
        "history": [{"created": created, "created_by": f"{TITLE}{layer.title}"} for layer in layers],
    }


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT)
