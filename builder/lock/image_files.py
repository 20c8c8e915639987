"""The file system of an image, as its layers make it: read once, for the few facts that a lock needs of it."""

from __future__ import annotations

import hashlib
import posixpath
import re
import tarfile
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, cast

from builder.document import CHUNK
from builder.errors import InvalidDocumentError, ResolveError
from builder.registry.layer import unpacked, unpacking_fails

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.registry.content import Descriptor
    from builder.store import Store

WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"  # OCI image specification 1.1, layer.md
DPKG = "var/lib/dpkg/status"
_INTERPRETER = re.compile(r"usr/(?:local/)?bin/python3\.\d+")
_LIBRARY = re.compile(r"(?:usr/)?lib(?:64)?/(?:x86_64-linux-gnu/)?libc(?:\.so\.6|-2\.\d+\.so)")
_RELEASE = re.compile(rb"GNU C Library[^\n]{0,80} release version 2\.(\d+)")
_READ = re.compile(rf"{DPKG}(?:\.d/[^/]+)?")


@dataclass(kw_only=True, slots=True)
class ImageFiles:
    """What is known of an image's files: its interpreters, what glibc and dpkg say; diff id and size of each layer."""

    interpreters: set[str] = field(default_factory=set)
    glibc: dict[str, int] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=dict)
    layers: list[tuple[str, int]] = field(default_factory=list)

    def interpreter(self, python: str, image: str, place: str) -> str:
        """Return the path of the interpreter of a minor version; raise ResolveError that names those that there are."""
        found = sorted(path for path in self.interpreters if path.endswith(f"/python{python}"))
        if not found:
            others = ", ".join(f"/{path}" for path in sorted(self.interpreters)) or "no Python at all in /usr"
            raise ResolveError(
                f"{place}: {image} has no Python {python}: it has {others}",
                remedy="name an image that has it, write its version in `python`, or bootstrap one with `base.debian`",
            )
        return f"/{found[0]}"

    def glibc_minor(self, image: str, place: str) -> int:
        """Return the minor version of glibc 2; raise ResolveError for an image without it."""
        if not self.glibc:
            raise ResolveError(
                f"{place}: {image} has no glibc, so no wheel of this stack runs on it",
                remedy="name an image of a distribution with glibc, or bootstrap one with `base.debian`",
            )
        return max(self.glibc.values())

    @property
    def packages(self) -> dict[str, str]:
        """The versions of the installed Debian packages, by name."""
        found = {}
        for text in self.status.values():
            for stanza in text.split("\n\n"):
                fields = dict(re.findall(r"^(Package|Version|Status): (.*)$", stanza, re.MULTILINE))
                if fields.get("Status", " installed").endswith(" installed") and {"Package", "Version"} <= {*fields}:
                    found[fields["Package"]] = fields["Version"]
        return dict(sorted(found.items()))


def read_image_files(layers: tuple[Descriptor, ...], source: str, store: Store) -> ImageFiles:
    """Read the layers of an image in the store from the bottom; raise InvalidDocumentError for one that is damaged."""
    files = ImageFiles()
    for layer in layers:
        try:
            with store.path(layer.sha256).open("rb") as file:
                content = _Measured(unpacked(layer, file, source))
                with tarfile.open(fileobj=cast("IO[bytes]", content), mode="r|") as archive:
                    for member in archive:
                        _see(posixpath.normpath(member.name).lstrip("/"), member, archive, files)
                content.finish()
        except unpacking_fails() as error:
            raise InvalidDocumentError(f"{source}: the layer {layer.digest} is damaged: {error}", remedy="") from error
        files.layers.append((f"sha256:{content.digest.hexdigest()}", content.size))
    return files


def _see(path: str, member: tarfile.TarInfo, archive: tarfile.TarFile, files: ImageFiles) -> None:
    folder, name = posixpath.split(path)
    if name == OPAQUE:
        _forget(folder + "/", files)
    elif name.startswith(WHITEOUT):
        _forget(posixpath.join(folder, name.removeprefix(WHITEOUT)), files)
    elif _INTERPRETER.fullmatch(path):
        files.interpreters.add(path)
    elif member.isreg() and (_LIBRARY.fullmatch(path) or _READ.fullmatch(path)):
        data = b"".join(_pieces(archive.extractfile(member)))
        release = _RELEASE.search(data)
        if _READ.fullmatch(path):
            files.status[path] = data.decode(errors="replace")
        elif release:
            files.glibc[path] = int(release[1])


def _forget(gone: str, files: ImageFiles) -> None:
    """Take away what a layer above has removed: one path with all below it, or all below a folder (`…/`)."""

    def stays(path: str) -> bool:
        return path != gone and not path.startswith(gone if gone.endswith("/") else f"{gone}/")

    files.interpreters = {path for path in files.interpreters if stays(path)}
    files.glibc = _kept(files.glibc, {path for path in files.glibc if stays(path)})
    files.status = {path: text for path, text in files.status.items() if stays(path)}


def _kept(values: Mapping[str, int], paths: set[str]) -> dict[str, int]:
    return {path: value for path, value in values.items() if path in paths}


def _pieces(file: IO[bytes] | None) -> Iterator[bytes]:
    while file is not None and (piece := file.read(CHUNK)):
        yield piece


class _Measured:
    """A stream that is hashed and measured while it is read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()
        self.size = 0

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        piece = self._stream.read(size)
        self.digest.update(piece)
        self.size += len(piece)
        return piece

    def finish(self) -> None:
        """Read what follows the end of the archive: it belongs to the layer's diff id."""
        while self.read(CHUNK):
            pass
