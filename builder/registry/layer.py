"""The bytes of a layer as they travel, and the tar that they unpack to."""

from __future__ import annotations

import io
import tarfile
import zlib
from typing import IO, TYPE_CHECKING, BinaryIO, cast

from builder.document import CHUNK
from builder.errors import InvalidDocumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import WriteableBuffer

    from builder.registry.content import Descriptor

# isal and zstandard are imported where they are used: both are slow to import.


def unpacked(layer: Descriptor, file: IO[bytes], source: str) -> IO[bytes]:
    """Return the tar of a layer, to be read once; `source` names the image. Raises InvalidDocumentError."""
    content = open_unpacked(file, layer.media_type)
    if content is None:
        raise InvalidDocumentError(
            f"{source}: the layer {layer.digest} is {layer.media_type}, which cannot be unpacked here"
        )
    return content


def open_unpacked(file: IO[bytes], media_type: str) -> IO[bytes] | None:
    """Return a layer's file as the tar in it, or None if layers of that media type cannot be unpacked here."""
    if media_type.endswith("gzip"):
        from isal import igzip  # noqa: PLC0415

        return cast("IO[bytes]", igzip.open(file))  # type: ignore[no-untyped-call]
    if media_type.endswith("zstd"):
        import zstandard  # noqa: PLC0415

        return cast("IO[bytes]", zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
    return file if media_type.endswith("tar") else None


def unpacking_fails() -> tuple[type[Exception], ...]:
    """Return what reading the tar of a damaged layer raises (isal's BadGzipFile is an OSError)."""
    import zstandard  # noqa: PLC0415
    from isal import igzip_lib  # noqa: PLC0415

    isal_error = cast("type[Exception]", igzip_lib.IsalError)
    return (EOFError, zlib.error, OSError, tarfile.TarError, isal_error, zstandard.ZstdError)


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
