"""The bytes of a layer as they travel, and the tar that they unpack to."""

from __future__ import annotations

import zlib
from typing import IO, TYPE_CHECKING, cast

from builder.errors import InvalidDocumentError

if TYPE_CHECKING:
    from builder.registry.content import Descriptor


def unpacked(layer: Descriptor, file: IO[bytes], source: str) -> IO[bytes]:
    """Return the tar of a layer, to be read once; `source` names the image. Raises InvalidDocumentError."""
    if layer.media_type.endswith("gzip"):
        from isal import igzip  # noqa: PLC0415 - slow to import

        return cast("IO[bytes]", igzip.open(file))  # type: ignore[no-untyped-call]
    if layer.media_type.endswith("tar"):
        return file
    raise InvalidDocumentError(
        f"{source}: the layer {layer.digest} is {layer.media_type}, which cannot be unpacked here"
    )


UNPACKING_FAILS = (EOFError, zlib.error, OSError)
"""What reading the tar of a damaged layer raises (isal's BadGzipFile is an OSError)."""
