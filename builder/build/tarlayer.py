"""Writes a layer in one pass and bounded memory: sorted PAX tar entries, fixed times and owners, packed and hashed."""

from __future__ import annotations

import base64
import hashlib
import posixpath
import tarfile
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from builder.build.compression import GZIP
from builder.build.zipmember import DAMAGED_MEMBER, read_member
from builder.errors import BuildFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from builder.build.compression import Compression

BLOCK = 1 << 20
_END = bytes(2 * tarfile.BLOCKSIZE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A file inside a zip archive; `origin` names the archive for people.

    `hash` is what the file must be, as a RECORD spells it (`sha256=…`), or None.
    """

    archive: Path
    origin: str
    name: str
    hash: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """A regular file of a layer. `path` is absolute in the image, `size` in bytes."""

    path: str
    size: int
    content: Member | bytes
    mode: Literal[0o644, 0o755] = 0o644


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A symbolic link of a layer."""

    path: str
    target: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """A folder of a layer that would otherwise not be there; the parents of every entry come by themselves."""

    path: str


Entry = File | Link | Folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    """A finished layer: `digest` and `size` of the compressed file, `diff_id` and `unpacked` bytes of the tar in it."""

    digest: str
    size: int
    diff_id: str
    unpacked: int


@dataclass
class _Compressor:
    """Hashes a stream, compresses it in blocks of one size, hashes the result and writes it."""

    out: BinaryIO
    compression: Compression
    _plain: hashlib._Hash = field(default_factory=hashlib.sha256)
    _packed: hashlib._Hash = field(default_factory=hashlib.sha256)
    _block: bytearray = field(default_factory=lambda: bytearray(BLOCK))
    _filled: int = 0
    _unpacked: int = 0
    _size: int = 0

    def __post_init__(self) -> None:
        self._packer = self.compression.packer()

    def write(self, data: bytes) -> None:
        """Take the next bytes. Blocks of one size make the result a function of the stream alone."""
        left = memoryview(data)
        while left:
            piece = left[: BLOCK - self._filled]
            self._block[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            left = left[len(piece) :]
            if self._filled == BLOCK:
                self._take()

    def finish(self) -> Blob:
        """Write what is left and return the digests."""
        self._take()
        self._put(self._packer.flush())
        return Blob(
            digest=f"sha256:{self._packed.hexdigest()}",
            size=self._size,
            diff_id=f"sha256:{self._plain.hexdigest()}",
            unpacked=self._unpacked,
        )

    def _take(self) -> None:
        with memoryview(self._block)[: self._filled] as block:
            self._plain.update(block)
            self._put(self._packer.compress(block))
        self._unpacked += self._filled
        self._filled = 0

    def _put(self, data: bytes) -> None:
        self._packed.update(data)
        self._size += len(data)
        self.out.write(data)


def write_layer(entries: Iterable[Entry], *, epoch: int, out: BinaryIO, compression: Compression = GZIP) -> Blob:
    """Write the entries as a layer to `out`; `epoch`, in seconds since 1970, is the time of every entry.

    Raises BuildFailedError if a file inside an archive is damaged or is not what its RECORD says.
    """
    compressor = _Compressor(out, compression)
    with ExitStack() as stack:
        archives = _Archives(stack)
        for entry in with_parents(entries):
            compressor.write(_header(entry, epoch))
            if isinstance(entry, File):
                for chunk in archives.content(entry):
                    compressor.write(chunk)
                compressor.write(bytes(-entry.size % tarfile.BLOCKSIZE))
    compressor.write(_END)
    return compressor.finish()


def compress_tar(tar: BinaryIO, out: BinaryIO, compression: Compression = GZIP) -> Blob:
    """Write a finished tar as a layer to `out`."""
    compressor = _Compressor(out, compression)
    while chunk := tar.read(BLOCK):
        compressor.write(chunk)
    return compressor.finish()


def with_parents(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries and the folders above them, each once, sorted by the bytes of their paths."""
    found: dict[str, Entry] = {}
    for entry in entries:
        folder = posixpath.dirname(entry.path)
        while folder != "/" and folder not in found:
            found[folder] = Folder(path=folder)
            folder = posixpath.dirname(folder)
        found[entry.path] = entry
    return sorted(found.values(), key=lambda entry: entry.path.encode())


def _header(entry: Entry, epoch: int) -> bytes:
    info = tarfile.TarInfo(entry.path.removeprefix("/"))
    info.mtime = epoch
    match entry:
        case File():
            info.size, info.mode = entry.size, entry.mode
        case Link():
            info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, entry.target
        case Folder():
            info.type, info.mode = tarfile.DIRTYPE, 0o755
    return info.tobuf(tarfile.PAX_FORMAT)


class _Archives:
    """The zip archives that a layer's files come from, each opened once."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._open: dict[Path, zipfile.ZipFile] = {}

    def content(self, file: File) -> Iterator[bytes]:
        """Yield the bytes of a file, exactly as many as its size says."""
        if isinstance(file.content, bytes):
            yield file.content
            return
        try:
            yield from self._member(file.content, file.size)
        except DAMAGED_MEMBER as error:
            raise BuildFailedError(f"{file.content.origin}: {file.content.name} is damaged: {error}") from error

    def _member(self, member: Member, size: int) -> Iterator[bytes]:
        algorithm, _, expected = (member.hash or "sha256=").partition("=")
        digest = hashlib.new(algorithm)
        seen = 0
        for chunk in read_member(self._zip(member.archive), member.name):
            digest.update(chunk)
            seen += len(chunk)
            yield chunk
        if seen != size or (expected and expected != record_digest(digest.digest())):
            raise BuildFailedError(
                f"{member.origin}: {member.name} is not the file that the wheel's RECORD lists",
                remedy="the wheel is broken or was changed after it was built: take another release of it",
                evidence=(f"RECORD: {member.hash}", f"seen:   {algorithm}={record_digest(digest.digest())}"),
            )

    def _zip(self, path: Path) -> zipfile.ZipFile:
        if path not in self._open:
            self._open[path] = self._stack.enter_context(zipfile.ZipFile(path))
        return self._open[path]


def record_digest(digest: bytes) -> str:
    """Return a digest as a RECORD spells it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
