"""Writes a layer in one pass and bounded memory: sorted PAX tar entries, fixed times and owners, packed and hashed."""

from __future__ import annotations

import base64
import hashlib
import posixpath
import struct
import tarfile
import zipfile
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.build.compression import GZIP
from builder.build.zipmember import DAMAGED_MEMBER, is_deflated, read_deflated, read_member
from builder.errors import BuildFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from builder.build.compression import Compression, Packer

BLOCK = 1 << 20
KEPT = 1 << 16  # packed bytes of a file: smaller ones are packed better, and faster, together with their neighbours
_END = bytes(2 * tarfile.BLOCKSIZE)
_GZIP_BEGIN = bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 0xFF])  # RFC 1952, 2.3: deflate, no name, no time, no system
_GZIP_END = struct.Struct("<II")  # CRC-32 and size modulo 2**32 of the plain bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A file inside a zip archive; `origin` names the archive for people.

    `hash` is what the wheel's RECORD says of the file (`sha256=…`), or None.
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


class LayerTar:
    """The tar of a layer, written in one pass: it says how long it is, then gives its pieces while they are packed.

    `blob` is the written layer.
    """

    blob: Blob

    def __init__(self, entries: Iterable[Entry], *, epoch: int) -> None:
        """Take the entries; `epoch`, in seconds since 1970, is the time of every one."""
        self._members = [(entry, _header(entry, epoch)) for entry in with_parents(entries)]

    @property
    def size(self) -> int:
        """Bytes of the tar."""
        return len(_END) + sum(len(header) + _padded(_size(entry)) for entry, header in self._members)

    def write(self, out: BinaryIO, compression: Compression = GZIP) -> Iterator[bytes]:
        """Write the packed layer to `out`, and yield the plain tar piece by piece as that goes on.

        Raises BuildFailedError if a file inside an archive is damaged or has another size than its entry says.
        """
        packing = _Packing(out, compression)
        with ExitStack() as stack:
            archives = _Archives(stack)
            for entry, header in self._members:
                yield from packing.add(header)
                if isinstance(entry, File):
                    yield from archives.copy(entry, packing)
                    yield from packing.add(bytes(_padded(entry.size) - entry.size))
        yield from packing.add(_END)
        yield from packing.end()
        self.blob = packing.blob


def write_layer(entries: Iterable[Entry], *, epoch: int, out: BinaryIO, compression: Compression = GZIP) -> Blob:
    """Write the entries as a layer to `out`, as `LayerTar` does."""
    tar = LayerTar(entries, epoch=epoch)
    deque(tar.write(out, compression), maxlen=0)
    return tar.blob


class _Packing:
    """A stream on its way into a layer: hashed, packed, hashed again and written.

    What comes in pieces is packed in blocks of one size, which makes the result a function of the stream alone. What
    is deflated already is written as it is, as a member of its own of the gzip file (RFC 1952, 2.2).
    """

    def __init__(self, out: BinaryIO, compression: Compression) -> None:
        self._out = out
        self._compression = compression
        self._plain, self._packed = hashlib.sha256(), hashlib.sha256()
        self._unpacked = self._size = 0
        self._packer: Packer | None = None
        self._waiting: list[bytes] = []  # less than a block together
        self._length = 0

    @property
    def blob(self) -> Blob:
        """The digests and sizes of what was written."""
        return Blob(
            digest=f"sha256:{self._packed.hexdigest()}",
            size=self._size,
            diff_id=f"sha256:{self._plain.hexdigest()}",
            unpacked=self._unpacked,
        )

    def keeps(self, info: zipfile.ZipInfo) -> bool:
        """Whether a member of a zip archive is written as it is deflated there."""
        return self._compression.keeps_deflated and is_worth_keeping(info)

    def add(self, data: bytes) -> Sequence[bytes]:
        """Take the next bytes; return the blocks that are full now."""
        self._waiting.append(data)
        self._length += len(data)
        if self._length < BLOCK:
            return ()
        joined = b"".join(self._waiting)
        full = self._length - self._length % BLOCK
        self._waiting, self._length = [joined[full:]], self._length - full
        blocks = [joined[place : place + BLOCK] for place in range(0, full, BLOCK)]
        for block in blocks:
            self._pack(block)
        return blocks

    def end(self) -> Sequence[bytes]:
        """End what is packed here; return what was still waiting."""
        last = b"".join(self._waiting)
        self._waiting, self._length = [], 0
        if last:
            self._pack(last)
        if self._packer is not None:
            self._put(self._packer.flush())
            self._packer = None
        return (last,) if last else ()

    def keep(self, pieces: Iterable[tuple[bytes, bytes]], info: zipfile.ZipInfo) -> Iterator[bytes]:
        """Take a member of a zip archive as pairs of packed and plain bytes; yield the plain ones."""
        yield from self.end()
        self._put(_GZIP_BEGIN)
        for packed, plain in pieces:
            self._see(plain)
            self._put(packed)
            yield plain
        self._put(_GZIP_END.pack(info.CRC, info.file_size % (1 << 32)))

    def _pack(self, block: bytes) -> None:
        self._see(block)
        if self._packer is None:
            self._packer = self._compression.packer()
        self._put(self._packer.compress(block))

    def _see(self, plain: bytes) -> None:
        self._plain.update(plain)
        self._unpacked += len(plain)

    def _put(self, data: bytes) -> None:
        self._packed.update(data)
        self._size += len(data)
        self._out.write(data)


def is_worth_keeping(info: zipfile.ZipInfo) -> bool:
    """Whether a member of a zip archive can be taken over as it is deflated, and is large enough for it."""
    return info.compress_size >= KEPT and is_deflated(info)


def compress_tar(tar: BinaryIO, out: BinaryIO, compression: Compression = GZIP) -> Blob:
    """Write a finished tar as a layer to `out`."""
    packing = _Packing(out, compression)
    while chunk := tar.read(BLOCK):
        packing.add(chunk)
    packing.end()
    return packing.blob


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


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _size(entry: Entry) -> int:
    return entry.size if isinstance(entry, File) else 0


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

    def copy(self, file: File, packing: _Packing) -> Iterator[bytes]:
        """Put the bytes of a file, exactly as many as its size says, into a layer; yield them as `_Packing` does."""
        if isinstance(file.content, bytes):
            yield from packing.add(file.content)
            return
        member = file.content
        try:
            archive = self._zip(member.archive)
            info = archive.getinfo(member.name)
            if packing.keeps(info):
                yield from packing.keep(_whole(read_deflated(archive, info), member, file.size), info)
                return
            for _, piece in _whole(((b"", piece) for piece in read_member(archive, info)), member, file.size):
                yield from packing.add(piece)
        except DAMAGED_MEMBER as error:
            raise BuildFailedError(f"{member.origin}: {member.name} is damaged: {error}") from error

    def _zip(self, path: Path) -> zipfile.ZipFile:
        if path not in self._open:
            self._open[path] = self._stack.enter_context(zipfile.ZipFile(path))
        return self._open[path]


def _whole(pieces: Iterable[tuple[bytes, bytes]], member: Member, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Pass pairs of packed and plain bytes on; the plain ones must be `size` bytes in the end.

    Never more of them: an engine that gets the layer meanwhile would take the rest for files of the archive around it,
    among them what the image is called. That they are what RECORD says is not asked here: the lock names the wheel by
    its sha256, and `static.installed` reads the files where they lie.
    """
    seen = 0
    for packed, plain in pieces:
        seen += len(plain)
        if seen <= size:
            yield packed, plain
    if seen != size:
        raise BuildFailedError(
            f"{member.origin}: {member.name} has {seen} bytes, and the wheel's index says {size}",
            remedy="the wheel is broken or was changed after it was built: take another release of it",
        )


def record_digest(digest: bytes) -> str:
    """Return a digest as a RECORD spells it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
