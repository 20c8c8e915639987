"""A small image of real layers in a store: what pushes, pulls and layouts are tested with."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

from builder.build.image import ImageSettings, assemble
from builder.build.layers import make_base_layer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.build.image import Image
    from builder.store import Store

SETTINGS = ImageSettings(epoch=1_764_000_000, environment={"PATH": "/bin"}, labels={"a": "1"}, command=("/bin/x",))


def tar_of(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def make_image(store: Store, *contents: Mapping[str, bytes]) -> Image:
    """Assemble an image with a layer for each of the contents."""
    layers = tuple(make_base_layer(store.add_bytes(tar_of(files)), store=store) for files in contents)
    return assemble(layers, SETTINGS)
