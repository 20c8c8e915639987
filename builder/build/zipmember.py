"""A member of a zip archive, read in pieces: inflated by isal, which takes less than half of zlib's time.

A deflated member can be had with its packed bytes, which another archive takes over as they are.
"""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING

from isal import igzip_lib, isal_zlib

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

PIECE = 1 << 18  # bytes: what was inflated is still in the cache of the processor when it is hashed
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # APPNOTE 4.3.7: signature, …, lengths of the name and of the extra field
_SIGNATURE = b"PK\x03\x04"
_ENCRYPTED = 0x1
DAMAGED_MEMBER: tuple[type[Exception], ...] = (
    zipfile.BadZipFile,
    zlib.error,
    igzip_lib.IsalError,  # type: ignore[assignment,unused-ignore]
    EOFError,
)
"""What reading a member raises if its bytes are not whole."""


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the bytes of a member in pieces of bounded size; raises one of DAMAGED_MEMBER if they are not whole."""
    if is_deflated(info):
        for _, piece in read_deflated(archive, info):
            yield piece
        return
    try:
        with archive.open(info) as stream:
            while piece := stream.read(PIECE):
                yield piece
    except (NotImplementedError, lzma.LZMAError) as error:
        raise zipfile.BadZipFile(str(error)) from error
    except OSError as error:  # bz2 says so of damaged bytes; what the disk says has a number
        if error.errno is not None:
            raise
        raise zipfile.BadZipFile(str(error)) from error


def is_deflated(info: zipfile.ZipInfo) -> bool:
    """Whether a member is one plain deflate stream (RFC 1951)."""
    return info.compress_type == zipfile.ZIP_DEFLATED and not info.flag_bits & _ENCRYPTED


def read_deflated(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[tuple[bytes, bytes]]:
    """Yield the next packed bytes, which may be none, and what they inflate to; both are bounded.

    The packed bytes are one whole deflate stream and nothing else. Raises one of DAMAGED_MEMBER if they are not.
    """
    file = archive.fp
    if file is None:
        raise ValueError("the archive is closed")
    place = info.header_offset
    file.seek(place)
    signature, name_length, extra_length = _LOCAL_HEADER.unpack(_read(file, _LOCAL_HEADER.size))
    if signature != _SIGNATURE:
        raise zipfile.BadZipFile(f"no local header at {place}")
    place += _LOCAL_HEADER.size + name_length + extra_length
    end, checksum = place + info.compress_size, 0
    inflate = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_DEFLATE)
    while not inflate.eof:
        packed = b""
        if inflate.needs_input:
            file.seek(place)  # other members are read through the same file between two pieces
            packed = _read(file, min(PIECE, end - place))
            place += len(packed)
        piece = inflate.decompress(packed, PIECE)
        checksum = isal_zlib.crc32(piece, checksum)
        yield packed, piece
    if checksum != info.CRC:
        raise zipfile.BadZipFile("Bad CRC-32")
    if place != end or inflate.unused_data:
        raise zipfile.BadZipFile("its deflate stream ends too early")


def _read(file: IO[bytes], length: int) -> bytes:
    data = file.read(length)
    if not data or len(data) < length:
        raise EOFError("the archive ends too early")
    return data
