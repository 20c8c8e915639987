"""Members of zip archives are read as zipfile reads them, and a damaged one is never read to its end."""

from __future__ import annotations

import random
import zipfile
from collections import deque
from typing import TYPE_CHECKING

import pytest

from builder.build.zipmember import DAMAGED_MEMBER, PIECE, read_member

if TYPE_CHECKING:
    from pathlib import Path

NOISE = random.Random(1).randbytes(PIECE // 2)
CONTENTS = {
    "empty": b"",
    "one": b"x",
    "noise": NOISE * 5,
    "zeros": bytes(30 * PIECE),  # 1000 times smaller when packed
}


def write(path: Path, compression: int) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in CONTENTS.items():
            archive.writestr(name, data)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_every_member_is_read_in_bounded_pieces(compression: int, tmp_path: Path) -> None:
    write(tmp_path / "a.zip", compression)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        for name, data in CONTENTS.items():
            pieces = list(read_member(archive, archive.getinfo(name)))
            assert b"".join(pieces) == data
            assert max(map(len, pieces), default=0) <= PIECE


def test_members_may_be_read_side_by_side(tmp_path: Path) -> None:
    write(tmp_path / "a.zip", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        one, other = read_member(archive, archive.getinfo("noise")), read_member(archive, archive.getinfo("zeros"))
        pairs = list(zip(one, other, strict=False))
        rest = b"".join(one)
        assert b"".join(pair[0] for pair in pairs) + rest == CONTENTS["noise"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.999])
def test_a_flipped_bit_is_noticed(share: float, tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("noise", NOISE)
        size = archive.getinfo("noise").compress_size
    data = bytearray(path.read_bytes())
    data[30 + len("noise") + int(share * size)] ^= 0x02
    path.write_bytes(data)
    with zipfile.ZipFile(path) as archive, pytest.raises(DAMAGED_MEMBER):
        deque(read_member(archive, archive.getinfo("noise")), maxlen=0)


def test_an_archive_that_lies_about_where_its_member_is_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.zip", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        archive.getinfo("noise").header_offset += 1
        with pytest.raises(zipfile.BadZipFile, match="no local header"):
            deque(read_member(archive, archive.getinfo("noise")), maxlen=0)
        archive.getinfo("zeros").compress_size -= 1
        with pytest.raises(EOFError):
            deque(read_member(archive, archive.getinfo("zeros")), maxlen=0)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damage_is_one_kind_of_error_whatever_packed_the_member(compression: int, tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    write(path, compression)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("noise")
    middle = info.header_offset + 30 + len("noise") + info.compress_size // 2
    data[middle : middle + 64] = bytes(64)
    path.write_bytes(data)
    with zipfile.ZipFile(path) as archive, pytest.raises(zipfile.BadZipFile):
        deque(read_member(archive, archive.getinfo("noise")), maxlen=0)


def test_a_compression_that_zipfile_does_not_know_is_damage(tmp_path: Path) -> None:
    write(tmp_path / "a.zip", zipfile.ZIP_STORED)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        info = archive.getinfo("one")
        info.compress_type = 99
        with pytest.raises(zipfile.BadZipFile, match="compression"):
            deque(read_member(archive, info), maxlen=0)
