"""A layer's bytes are a function of its entries and the clock, and of nothing else."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import os
import tarfile
import time
import zipfile
from typing import TYPE_CHECKING

import pytest

from builder.build.compression import ZSTD
from builder.build.tarlayer import (
    BLOCK,
    Blob,
    File,
    Folder,
    LayerTar,
    Link,
    Member,
    compress_tar,
    with_parents,
    write_layer,
)
from builder.errors import BuildFailedError
from tests.wheels import record_line

if TYPE_CHECKING:
    from pathlib import Path

    from builder.build.tarlayer import Entry

EPOCH = 1_764_000_000
LONG = "/opt/env/" + "/".join(["folder" * 4] * 6) + "/naïve.py"
ENTRIES: list[Entry] = [
    File(path="/opt/env/run", size=9, content=b"#!/bin/sh", mode=0o755),
    File(path="/opt/env/a/b.txt", size=5, content=b"hello"),
    File(path=LONG, size=0, content=b""),
    Link(path="/opt/env/python", target="/usr/bin/python3"),
    Folder(path="/opt/env/a-empty"),
]


def written(entries: list[Entry]) -> tuple[Blob, bytes]:
    out = io.BytesIO()
    blob = write_layer(entries, epoch=EPOCH, out=out)
    return blob, out.getvalue()


def members(data: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getmembers()


def test_the_digests_are_those_of_the_bytes() -> None:
    blob, data = written(ENTRIES)
    tar = gzip.decompress(data)
    assert blob == Blob(
        digest=f"sha256:{hashlib.sha256(data).hexdigest()}",
        size=len(data),
        diff_id=f"sha256:{hashlib.sha256(tar).hexdigest()}",
        unpacked=len(tar),
    )


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 512])
def test_how_a_stream_is_cut_does_not_change_its_bytes(size: int) -> None:
    content = os.urandom(size)
    whole, pieces = io.BytesIO(), io.BytesIO()
    blob = compress_tar(io.BytesIO(content), whole)

    class Cut(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, 700_001))

    assert compress_tar(Cut(content), pieces) == blob
    assert pieces.getvalue() == whole.getvalue()
    assert gzip.decompress(whole.getvalue()) == content


def test_a_known_layer_has_its_known_diff_id() -> None:
    """A change of Python's tarfile or of this project's layout shows here: raise LAYOUT when it is meant."""
    assert written(ENTRIES)[0].diff_id == "sha256:5ab7226a7ff736c64499d33f1cdb3324407de65c6021309d7a9e3360a9b8c884"


def test_entries_are_sorted_by_bytes_and_parents_come_once() -> None:
    names = [member.name for member in members(written(ENTRIES)[1])]
    assert names == sorted(names, key=str.encode)
    assert len(names) == len(set(names))
    assert names[:5] == ["opt", "opt/env", "opt/env/a", "opt/env/a-empty", "opt/env/a/b.txt"]
    assert LONG.removeprefix("/") in names


def test_owners_times_and_modes_are_fixed() -> None:
    found = {member.name: member for member in members(written(ENTRIES)[1])}
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in found.values()} == {(0, 0, "", "", EPOCH)}
    modes = {name: found[f"opt/env{name}"].mode for name in ("", "/run", "/a/b.txt", "/python")}
    assert modes == {"": 0o755, "/run": 0o755, "/a/b.txt": 0o644, "/python": 0o777}
    assert found["opt/env/python"].linkname == "/usr/bin/python3"


def test_order_time_zone_and_umask_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    first = written(ENTRIES)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    before = os.umask(0o077)
    try:
        assert written(ENTRIES[::-1]) == first
    finally:
        os.umask(before)
        monkeypatch.undo()
        time.tzset()


def test_a_later_entry_with_the_same_path_wins() -> None:
    twice: list[Entry] = [File(path="/a", size=1, content=b"1"), File(path="/a", size=1, content=b"2")]
    assert with_parents(twice) == [twice[1]]


def packed_file(folder: Path, data: bytes, compression: int = zipfile.ZIP_DEFLATED) -> File:
    """Return a file of a layer that is the member of a zip archive."""
    with zipfile.ZipFile(folder / "a.whl", "w", compression) as archive:
        archive.writestr("big", data)
    line = record_line("big", data).split(",")[1]
    return File(
        path="/big",
        size=len(data),
        content=Member(archive=folder / "a.whl", origin="a.whl", name="big", hash=line),
    )


def deflated(file: File) -> bytes:
    """Return the bytes of the archive's member as they are packed there."""
    assert isinstance(file.content, Member)
    with zipfile.ZipFile(file.content.archive) as archive:
        info = archive.getinfo(file.content.name)
    place = info.header_offset + 30 + len(info.filename)
    return file.content.archive.read_bytes()[place : place + info.compress_size]


NOISE = os.urandom(BLOCK) + bytes(2 * BLOCK + 17)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_a_large_member_of_an_archive_unpacks_to_its_bytes(tmp_path: Path, compression: int) -> None:
    after = File(path="/c", size=1, content=b"1")
    blob, data = written([packed_file(tmp_path, NOISE, compression), after])
    plain, _ = written([File(path="/big", size=len(NOISE), content=NOISE), after])
    assert (blob.diff_id, blob.unpacked) == (plain.diff_id, plain.unpacked)
    assert blob.diff_id == f"sha256:{hashlib.sha256(gzip.decompress(data)).hexdigest()}"


def test_a_large_file_is_taken_over_as_the_wheel_packs_it(tmp_path: Path) -> None:
    file = packed_file(tmp_path, NOISE)
    assert deflated(file) in written([file])[1]
    plain = File(path="/big", size=len(NOISE), content=NOISE)
    assert deflated(file) not in written([plain])[1]


def test_zstd_takes_nothing_over(tmp_path: Path) -> None:
    file, out = packed_file(tmp_path, NOISE), io.BytesIO()
    blob = write_layer([file], epoch=EPOCH, out=out, compression=ZSTD)
    assert blob.diff_id == written([file])[0].diff_id
    assert deflated(file) not in out.getvalue()


def test_small_files_are_packed_together(tmp_path: Path) -> None:
    small = packed_file(tmp_path, b"hello " * 1000)
    data = written([small])[1]
    assert data.count(b"\x1f\x8b\x08") == 1


def test_bytes_behind_a_deflate_stream_never_reach_a_layer(tmp_path: Path) -> None:
    file = packed_file(tmp_path, NOISE)
    with zipfile.ZipFile(tmp_path / "a.whl") as archive:
        info = archive.getinfo("big")
    longer, at = bytearray((tmp_path / "a.whl").read_bytes()), info.header_offset + 33 + info.compress_size
    longer[at:at] = b"junk"
    directory = longer.index(b"PK\x01\x02", at)
    longer[directory + 20 : directory + 24] = (info.compress_size + 4).to_bytes(4, "little")
    end = longer.index(b"PK\x05\x06", directory)
    longer[end + 16 : end + 20] = directory.to_bytes(4, "little")
    (tmp_path / "a.whl").write_bytes(longer)
    with pytest.raises(BuildFailedError, match=r"a.whl: big is damaged: its deflate stream ends too early"):
        written([file])


def test_the_pieces_are_the_tar_and_its_size_is_known_before(tmp_path: Path) -> None:
    entries = [*ENTRIES, packed_file(tmp_path, NOISE)]
    tar, out = LayerTar(entries, epoch=EPOCH), io.BytesIO()
    pieces = b"".join(tar.write(out))
    assert len(pieces) == tar.size
    assert pieces == gzip.decompress(out.getvalue())


@pytest.mark.parametrize("size", [4, 6])
def test_a_file_of_another_size_than_its_entry_is_refused(tmp_path: Path, size: int) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.writestr("a.py", b"hello")
    member = Member(archive=tmp_path / "a.whl", origin="a.whl", name="a.py")
    with pytest.raises(BuildFailedError, match=rf"^a.whl: a.py has 5 bytes, and the wheel's index says {size}$"):
        written([File(path="/a.py", size=size, content=member)])


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_file_that_is_longer_than_it_says_gives_no_piece_beyond_its_size(tmp_path: Path, compression: int) -> None:
    longer = packed_file(tmp_path, NOISE, compression)
    tar = LayerTar([dataclasses.replace(longer, size=BLOCK // 2)], epoch=EPOCH)
    sent = io.BytesIO()
    with pytest.raises(BuildFailedError, match="and the wheel's index says"):
        sent.writelines(tar.write(io.BytesIO()))
    assert sent.tell() <= tar.size


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.py", b"hello " * 100)
    data = bytearray((tmp_path / "a.whl").read_bytes())
    data[36] ^= 0xFF
    (tmp_path / "a.whl").write_bytes(data)
    with pytest.raises(BuildFailedError, match=r"a.whl: a.py is damaged"):
        written([File(path="/a.py", size=600, content=Member(archive=tmp_path / "a.whl", origin="a.whl", name="a.py"))])


def test_a_finished_tar_keeps_its_digest_as_diff_id() -> None:
    tar = os.urandom(3000)
    out = io.BytesIO()
    blob = compress_tar(io.BytesIO(tar), out)
    assert (blob.diff_id, blob.unpacked) == (f"sha256:{hashlib.sha256(tar).hexdigest()}", 3000)
    assert gzip.decompress(out.getvalue()) == tar
    assert out.getvalue()[3:8] == bytes(5), "no file name and no time in the gzip header"
