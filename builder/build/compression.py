"""How layers are compressed: each way pinned to a library, its version and its level, which all change the bytes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, BinaryIO, Literal, Protocol, cast

import isal
import zstandard
from isal import igzip, igzip_lib, isal_zlib

from builder.document import CHUNK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from _typeshed import WriteableBuffer

CompressionName = Literal["gzip", "zstd"]
DAMAGED: tuple[type[Exception], ...] = (
    igzip.BadGzipFile,
    igzip_lib.IsalError,  # type: ignore[assignment,unused-ignore]
    EOFError,
    zstandard.ZstdError,
)
"""What reading an unpacked layer raises if its bytes are not those of an archive."""

GZIP_LEVEL = 2
"""Of isal's levels 0 to 3. The bytes of level 3 depend on the processor's vector units; those of level 2 are the same
with SSE4.2, AVX2 and AVX-512 (seen under QEMU's processor models)."""
ZSTD_LEVEL = 3
ZSTD_ENGINE = 23  # the first Docker Engine that can pull layers in zstd (20.10: "archive/tar: invalid tar header")
_LIBZSTD = ".".join(map(str, zstandard.ZSTD_VERSION))
_GZIP_FORMAT = 31
_LAYER = "application/vnd.oci.image.layer.v1.tar"


class Packer(Protocol):
    """Compresses a stream."""

    def compress(self, data: bytes, /) -> bytes:
        """Take the next bytes and return what is ready."""

    def flush(self) -> bytes:
        """Return what is left, at the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compression:
    """One way to compress; `compressor` names everything that can change the bytes, `open` reads them unpacked."""

    name: CompressionName
    media_type: str
    compressor: str
    packer: Callable[[], Packer]
    open: Callable[[IO[bytes]], IO[bytes]]


def _zstd_packer() -> Packer:
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compressobj()


def _zstd_open(file: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))


GZIP = Compression(
    name="gzip",
    media_type=f"{_LAYER}+gzip",
    compressor=f"isal {isal.__version__} level {GZIP_LEVEL}",
    packer=lambda: isal_zlib.compressobj(GZIP_LEVEL, wbits=_GZIP_FORMAT),
    open=lambda file: cast("IO[bytes]", igzip.open(file)),  # type: ignore[no-untyped-call]
)
ZSTD = Compression(
    name="zstd",
    media_type=f"{_LAYER}+zstd",
    compressor=f"zstandard {zstandard.__version__} with libzstd {_LIBZSTD} level {ZSTD_LEVEL}",
    packer=_zstd_packer,
    open=_zstd_open,
)
COMPRESSIONS = {each.name: each for each in (GZIP, ZSTD)}


def open_unpacked(file: IO[bytes], media_type: str) -> IO[bytes] | None:
    """Return a layer's file as the tar in it, or None if layers of that media type cannot be unpacked here."""
    if media_type.endswith("tar"):
        return file
    found = [each for each in COMPRESSIONS.values() if media_type.endswith(each.name)]
    return found[0].open(file) if found else None


def file_of(pieces: Iterator[bytes]) -> BinaryIO:
    """Return pieces of bytes as a file that is read once, from its begin to its end."""
    return io.BufferedReader(_Pieces(pieces), CHUNK)


class _Pieces(io.RawIOBase):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self._pieces = pieces
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill what there is room for from one piece; 0 at the end."""
        target = memoryview(buffer)
        if not self._left:
            self._left = memoryview(next(self._pieces, b""))
        count = min(len(target), len(self._left))
        target[:count] = self._left[:count]
        self._left = self._left[count:]
        return count
