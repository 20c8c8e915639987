"""Layers in gzip and in zstd: the same bytes each time, read back as they were, and damage is noticed."""

from __future__ import annotations

import contextlib
import io
import random

import pytest

from builder.build.compression import COMPRESSIONS, Compression
from builder.build.tarlayer import BLOCK, File, compress_tar, write_layer
from builder.registry.layer import file_of, open_unpacked, unpacking_fails

TAR = random.Random(1).randbytes(3 * BLOCK) + bytes(5 * BLOCK + 11)
both = pytest.mark.parametrize("compression", COMPRESSIONS.values(), ids=COMPRESSIONS)


def packed(compression: Compression) -> bytes:
    out = io.BytesIO()
    compress_tar(io.BytesIO(TAR), out, compression)
    return out.getvalue()


@both
def test_what_was_packed_is_unpacked_from_pieces_of_any_size(compression: Compression) -> None:
    data = packed(compression)
    for size in (1000, BLOCK + 1, len(data)):
        pieces = (data[place : place + size] for place in range(0, len(data), size))
        content = open_unpacked(file_of(pieces), compression.media_type)
        assert content is not None
        assert content.read() == TAR


@both
def test_the_bytes_do_not_depend_on_how_the_stream_came(compression: Compression) -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 7, 7777))

    out = io.BytesIO()
    blob = compress_tar(Slow(TAR), out, compression)
    assert out.getvalue() == packed(compression)
    assert blob.size == len(out.getvalue())


@both
@pytest.mark.parametrize("damage", ["short", "flipped"])
def test_a_damaged_layer_is_never_read_to_its_end(compression: Compression, damage: str) -> None:
    data = bytearray(packed(compression))
    if damage == "short":
        del data[-20:]
    else:
        data[0] ^= 4
    content = open_unpacked(io.BytesIO(bytes(data)), compression.media_type)
    assert content is not None
    with contextlib.suppress(*unpacking_fails()):
        assert content.read() != TAR


@both
def test_a_layer_has_one_diff_id_and_a_digest_for_each_way_to_pack_it(compression: Compression) -> None:
    file = File(path="/etc/x", size=1, content=b"1")
    blobs = [write_layer([file], epoch=0, out=io.BytesIO(), compression=each) for each in COMPRESSIONS.values()]
    assert len({blob.diff_id for blob in blobs}) == 1
    assert len({blob.digest for blob in blobs}) == len(COMPRESSIONS)
    assert compression.media_type.endswith(f"tar+{compression.name}")
    assert "level" in compression.compressor


def test_other_media_types_are_not_guessed() -> None:
    assert open_unpacked(io.BytesIO(b"x"), "application/vnd.oci.image.layer.v1.tar+brotli") is None
    plain = open_unpacked(io.BytesIO(b"x"), "application/vnd.oci.image.layer.v1.tar")
    assert plain is not None
    assert plain.read() == b"x"
