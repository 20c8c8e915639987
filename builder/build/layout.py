"""Images as OCI image layouts (OCI image specification 1.1, image-layout.md), folders or tar files: written, read."""

from __future__ import annotations

import contextlib
import shutil
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from builder.build.image import MANIFEST_TYPE, tar_bytes, tar_file
from builder.build.published import image_payloads
from builder.build.stored_image import stored_image
from builder.document import CHUNK
from builder.errors import InvalidDocumentError, ResolveError
from builder.places import unfinished
from builder.registry.content import (
    LAYOUT_INDEX,
    LAYOUT_MARKER,
    LAYOUT_VERSION,
    OCI_INDEX,
    REFERENCE_NAME,
    Descriptor,
    Manifest,
    Payload,
    index_of,
)
from builder.registry.faults import DamagedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from builder.build.image import Image
    from builder.store import Store


def write_layout(image: Image, target: Path, *, store: Store, name: str | None = None) -> None:
    """Write an image as a layout, the same bytes each time: a tar file if `target` ends with .tar, else a new folder.

    `name` is what the index calls the image, as a tag. A reader sees the whole layout or none. Raises UsageError if
    something is there already, BuildFailedError if it cannot be written.
    """
    put_layout([_entry(image, name)], [Payload.of(image.manifest), *image_payloads(image, store)], target)


def put_layout(entries: Iterable[Descriptor], payloads: Iterable[Payload], target: Path) -> None:
    """Write what an index lists and all that it needs as a layout, as `write_layout` does."""
    blobs = {payload.digest: payload for payload in payloads}
    top = [(LAYOUT_MARKER, Payload.of(LAYOUT_VERSION)), (LAYOUT_INDEX, Payload.of(index_of(entries)))]
    members = [*top, *((blob_name(digest), blobs[digest]) for digest in sorted(blobs))]
    if target.suffix == ".tar":
        _write_tar(members, target)
    else:
        _write_folder(members, target)


def read_layout_image(path: Path, store: Store, *, name: str | None = None) -> Image:
    """Bring the image of a layout, a folder or a tar file, into the store and return it.

    `name` chooses one of several. Raises InvalidDocumentError if this is no layout, or a blob is damaged.
    """
    with opened_layout(path) as layout:
        described = _chosen(layout, name)
        _take(layout, described, store)
        data = store.path(described.sha256).read_bytes()
        manifest = Manifest(media_type=described.media_type, data=data, source=f"{path} ({described.digest})")
        for blob in _blobs(manifest):
            _take(layout, blob, store)
    return stored_image(manifest, store)


def _entry(image: Image, name: str | None) -> Descriptor:
    annotations = {REFERENCE_NAME: name} if name else {}
    return Descriptor(
        media_type=MANIFEST_TYPE, digest=image.manifest_digest, size=len(image.manifest), annotations=annotations
    )


def blob_name(digest: str) -> str:
    """Return where a layout has a blob."""
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _write_tar(members: list[tuple[str, Payload]], target: Path) -> None:
    with unfinished(target) as path, path.open("wb") as file:
        for name, payload in members:
            data = payload.source
            file.writelines(tar_file(name, data, payload.size) if isinstance(data, Path) else tar_bytes(name, data))
        file.write(bytes(2 * tarfile.BLOCKSIZE))


def _write_folder(members: list[tuple[str, Payload]], target: Path) -> None:
    with unfinished(target) as folder:
        (folder / "blobs" / "sha256").mkdir(parents=True)
        for name, payload in members:
            with payload.open() as source, (folder / name).open("wb") as out:
                shutil.copyfileobj(source, out, CHUNK)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
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

    def index(self) -> Manifest:
        """Return what the layout lists; raises InvalidDocumentError if it is none."""
        with self.open(LAYOUT_MARKER), self.open(LAYOUT_INDEX) as file:
            return Manifest(media_type=OCI_INDEX, data=file.read(), source=str(self.place))


@contextlib.contextmanager
def opened_layout(place: Path) -> Iterator[Layout]:
    """Open a layout, a folder or a tar file; raises InvalidDocumentError if it is neither."""
    if place.is_dir():
        yield Layout(place=place, find=lambda name: (place / name).open("rb"))
        return
    try:
        archive = tarfile.open(place)  # noqa: SIM115 - closed below
    except (OSError, EOFError, tarfile.TarError) as error:
        raise InvalidDocumentError(f"{place} is no folder and no tar file: {_first_line(error)}") from error
    with archive:
        try:
            yield Layout(place=place, find=archive.extractfile)
        except (EOFError, tarfile.TarError, zlib.error) as error:
            raise InvalidDocumentError(
                f"{place} is cut off or damaged: {_first_line(error)}", remedy="copy it again, or export it again"
            ) from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _chosen(layout: Layout, name: str | None) -> Descriptor:
    """Return the manifest that the index calls `name`, or the only one."""
    index = layout.index()
    try:
        found = [item for item in index.manifests if name in {None, item.annotations.get(REFERENCE_NAME)}]
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


def _take(layout: Layout, blob: Descriptor, store: Store) -> None:
    """Bring a blob of the layout into the store."""
    if store.has(blob.sha256):
        return
    with store.scratch() as scratch, layout.open(blob_name(blob.digest)) as source:
        with (scratch / "blob").open("wb") as out:
            shutil.copyfileobj(source, out, CHUNK)
        try:
            store.add(scratch / "blob", blob.sha256)
        except ResolveError:
            raise InvalidDocumentError(f"{layout.place}: the blob {blob.digest} is damaged") from None
