"""What no image can be made faster than: what the disk takes, and one compressor on all cores."""

from __future__ import annotations

import os
import tempfile
import time
import zipfile
from typing import TYPE_CHECKING

from builder.build.tarlayer import is_worth_keeping
from builder.registry.layer import open_unpacked

if TYPE_CHECKING:
    from pathlib import Path

    from builder.build.assembly import ImagePlan
    from builder.build.image import Image
    from builder.store import Store


def disk_bandwidth(folder: Path) -> float:
    """Return what the disk takes, in bytes per second, of bytes that cannot be compressed."""
    block, count = os.urandom(16 << 20), 64
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        start = time.perf_counter()
        for _ in range(count):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return count * len(block) / (time.perf_counter() - start)


def compressed_here(image: Image, plan: ImagePlan) -> int:
    """Return how many bytes of the image are compressed: all that its layers do not take over from the wheels."""
    kept = 0
    for wheel in plan.wheels:
        with zipfile.ZipFile(wheel.path) as archive:
            kept += sum(i.file_size for i in archive.infolist() if is_worth_keeping(i))
    return sum(layer.blob.unpacked for layer in image.layers[1:]) - kept


def compression_seconds(image: Image, plan: ImagePlan, store: Store) -> float:
    """Return how long one core needs to compress a sample of small files, scaled to all that is compressed."""
    [layer] = [layer for layer in image.layers if layer.title.startswith("transformers ")]
    with store.path(layer.blob.digest.removeprefix("sha256:")).open("rb") as file:
        content = open_unpacked(file, layer.media_type)
        sample = content.read() if content else b""
    packer, start = plan.terms.codec.packer(), time.perf_counter()
    for place in range(0, len(sample), 1 << 20):
        packer.compress(sample[place : place + (1 << 20)])
    return (time.perf_counter() - start) * compressed_here(image, plan) / len(sample)
