"""How layers are compressed: each way pinned to a library, its version and its level, which all change the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import isal
import zstandard
from isal import isal_zlib

if TYPE_CHECKING:
    from collections.abc import Callable

CompressionName = Literal["gzip", "zstd"]
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

    def compress(self, data: bytes | memoryview, /) -> bytes:
        """Take the next bytes and return what is ready."""

    def flush(self) -> bytes:
        """Return what is left, at the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compression:
    """One way to compress; `compressor` names everything that can change the bytes.

    With `keeps_deflated` the large files of wheels are taken over as the wheel packs them: nothing is compressed twice.
    """

    name: CompressionName
    media_type: str
    compressor: str
    packer: Callable[[], Packer]
    keeps_deflated: bool = False


def _zstd_packer() -> Packer:
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compressobj()


GZIP = Compression(
    name="gzip",
    media_type=f"{_LAYER}+gzip",
    compressor=f"isal {isal.__version__} level {GZIP_LEVEL}",
    packer=lambda: isal_zlib.compressobj(GZIP_LEVEL, wbits=_GZIP_FORMAT),
    keeps_deflated=True,
)
ZSTD = Compression(
    name="zstd",
    media_type=f"{_LAYER}+zstd",
    compressor=f"zstandard {zstandard.__version__} with libzstd {_LIBZSTD} level {ZSTD_LEVEL}",
    packer=_zstd_packer,
)
COMPRESSIONS = {each.name: each for each in (GZIP, ZSTD)}
