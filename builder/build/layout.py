"""Images as OCI image layouts (OCI image specification 1.1, image-layout.md), folders or tar files: written, read."""

from __future__ import annotations

import contextlib
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from builder.build.image import MANIFEST_TYPE, tar_bytes, tar_file
from builder.build.published import image_payloads
from builder.build.stored_image import stored_image
from builder.document import CHUNK, canonical_json
from builder.errors import InvalidDocumentError, ResolveError, UsageError
from builder.registry.content import OCI_INDEX, Descriptor, Manifest, Payload
from builder.registry.faults import DamagedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.build.image import Image
    from builder.store import Store

MARKER = "oci-layout"
VERSION = b'{"imageLayoutVersion":"1.0.0"}'
INDEX = "index.json"
NAME = "org.opencontainers.image.ref.name"


def write_layout(image: Image, target: Path, *, store: Store, name: str | None = None) -> None:
    """Write an image as a layout, the same bytes each time: a tar file if `target` ends with .tar, else a new folder.

    `name` is what the index calls the image, as a tag. A reader sees the whole layout or none. Raises UsageError if the
    folder is there already.
    """
    members = _members(image, store, name)
    if target.suffix == ".tar":
        _write_tar(members, target)
    else:
        _write_folder(members, target)


def read_layout_image(path: Path, store: Store, *, name: str | None = None) -> Image:
    """Bring the image of a layout, a folder or a tar file, into the store and return it.

    `name` chooses one of several. Raises InvalidDocumentError if this is no layout, or a blob is damaged.
    """
    with _opened(path) as layout:
        described = _chosen(layout, name)
        _take(layout, described, store)
        data = store.path(described.sha256).read_bytes()
        manifest = Manifest(media_type=described.media_type, data=data, source=f"{path} ({described.digest})")
        for blob in _blobs(manifest):
            _take(layout, blob, store)
    return stored_image(manifest, store)


def _members(image: Image, store: Store, name: str | None) -> list[tuple[str, Payload]]:
    blobs = {payload.digest: payload for payload in (Payload.of(image.manifest), *image_payloads(image, store))}
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [_entry(image, name)]}
    top = [(MARKER, Payload.of(VERSION)), (INDEX, Payload.of(canonical_json(index)))]
    return [*top, *((_blob_name(digest), blobs[digest]) for digest in sorted(blobs))]


def _entry(image: Image, name: str | None) -> dict[str, Any]:
    annotations = {NAME: name} if name else {}
    return Descriptor(
        media_type=MANIFEST_TYPE, digest=image.manifest_digest, size=len(image.manifest), annotations=annotations
    ).to_plain()


def _blob_name(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _write_tar(members: list[tuple[str, Payload]], target: Path) -> None:
    with _unfinished(target) as folder:
        with (folder / "tar").open("wb") as file:
            for name, payload in members:
                data = payload.source
                file.writelines(tar_file(name, data, payload.size) if isinstance(data, Path) else tar_bytes(name, data))
            file.write(bytes(2 * tarfile.BLOCKSIZE))
        (folder / "tar").replace(target)


def _write_folder(members: list[tuple[str, Payload]], target: Path) -> None:
    if target.exists():
        raise UsageError(f"{target} is there already", remedy="remove it, or give another name")
    with _unfinished(target) as folder:
        (folder / "layout" / "blobs" / "sha256").mkdir(parents=True)
        for name, payload in members:
            with payload.open() as source, (folder / "layout" / name).open("wb") as out:
                shutil.copyfileobj(source, out, CHUNK)
        (folder / "layout").rename(target)


@contextlib.contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """Give a folder on the disk of `target` for what is not finished; it is removed."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        yield Path(folder)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layout:
    """A layout that is read: `find` opens a file of it or raises KeyError or FileNotFoundError."""

    place: Path
    find: Callable[[str], IO[bytes] | None]

    def open(self, name: str) -> IO[bytes]:
        """Open a file of the layout; raises InvalidDocumentError if there is none."""
        with contextlib.suppress(KeyError, FileNotFoundError):
            file = self.find(name)
            if file is not None:
                return file
        raise InvalidDocumentError(
            f"{self.place} holds no {name}", remedy="give the folder or the tar file of an OCI image layout"
        )


@contextlib.contextmanager
def _opened(place: Path) -> Iterator[_Layout]:
    if place.is_dir():
        yield _Layout(place=place, find=lambda name: (place / name).open("rb"))
        return
    try:
        archive = tarfile.open(place)  # noqa: SIM115 - closed below
    except (OSError, tarfile.TarError) as error:
        raise InvalidDocumentError(f"{place} is no folder and no tar file: {error}") from error
    with archive:
        yield _Layout(place=place, find=archive.extractfile)


def _chosen(layout: _Layout, name: str | None) -> Descriptor:
    """Return the manifest that the index calls `name`, or the only one."""
    with layout.open(MARKER), layout.open(INDEX) as file:
        index = Manifest(media_type=OCI_INDEX, data=file.read(), source=str(layout.place))
    try:
        found = [item for item in index.manifests if name in {None, item.annotations.get(NAME)}]
    except DamagedError as error:
        raise InvalidDocumentError(error.message) from error
    if len(found) != 1:
        raise InvalidDocumentError(
            f"{layout.place} holds {len(found)} images{f' called {name}' if name else ''}, not one",
            remedy="name the image that is meant",
        )
    return found[0]


def _blobs(manifest: Manifest) -> tuple[Descriptor, ...]:
    try:
        return (manifest.config, *manifest.layers)
    except DamagedError as error:
        raise InvalidDocumentError(error.message) from error


def _take(layout: _Layout, blob: Descriptor, store: Store) -> None:
    """Bring a blob of the layout into the store."""
    if store.has(blob.sha256):
        return
    with store.scratch() as scratch, layout.open(_blob_name(blob.digest)) as source:
        with (scratch / "blob").open("wb") as out:
            shutil.copyfileobj(source, out, CHUNK)
        try:
            store.add(scratch / "blob", blob.sha256)
        except ResolveError:
            raise InvalidDocumentError(f"{layout.place}: the blob {blob.digest} is damaged") from None
