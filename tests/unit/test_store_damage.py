from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING

import pytest

from builder.build.layers import make_base_layer
from builder.errors import BuildFailedError
from builder.store import DamagedFileError, DiskFullError, Store, mended, prove_all
from tests.small_disk import small_disk

if TYPE_CHECKING:
    from pathlib import Path

OPENS = (
    "import sys",
    "from pathlib import Path",
    "from builder.store import Store",
    "store = Store(Path(sys.argv[1]))",
    "print(flush=True)",
    "input()",
)


def kept(store: Store, data: bytes) -> str:
    return store.add_bytes(data)


def flip(path: Path, place: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)


def test_a_file_with_one_flipped_bit_is_named_when_it_is_used(tmp_path: Path) -> None:
    sha256 = kept(Store(tmp_path), b"wheel")
    flip(Store(tmp_path).path(sha256), 3)
    with pytest.raises(DamagedFileError, match=rf"files/{sha256[:2]}/{sha256} is damaged: its bytes have the sha256"):
        Store(tmp_path).sound(sha256)


def test_a_file_that_is_gone_is_named_too(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match="is not there any more"):
        Store(tmp_path).sound("ab" * 32)


def test_a_file_is_proven_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    sha256 = kept(store, b"wheel")
    assert store.sound(sha256) == store.path(sha256)
    flip(store.path(sha256))
    assert store.sound(sha256) == store.path(sha256)
    with pytest.raises(DamagedFileError):
        Store(tmp_path).sound(sha256)


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (3 << 20) + 7])
def test_reading_gives_all_bytes(tmp_path: Path, size: int) -> None:
    store = Store(tmp_path)
    data = os.urandom(size)
    assert b"".join(store.read(kept(store, data))) == data


@pytest.mark.parametrize("damage", ["flipped", "truncated", "longer"])
def test_a_reader_never_gets_the_end_of_a_damaged_file(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    data = os.urandom(2 << 20)
    path = store.path(kept(store, data))
    if damage == "flipped":
        flip(path)
    else:
        path.write_bytes(data[:-1] if damage == "truncated" else data + b"x")
    seen = bytearray()
    with pytest.raises(DamagedFileError):
        deque(map(seen.extend, store.read(path.name)), maxlen=0)
    assert len(seen) < path.stat().st_size


def test_what_is_damaged_is_dropped_said_and_made_again(tmp_path: Path) -> None:
    store, said = Store(tmp_path), list[str]()
    sha256 = kept(store, b"layer")
    flip(store.path(sha256))

    def attempt() -> bytes:
        if not store.has(sha256):
            store.add_bytes(b"layer")
        return Store(tmp_path).sound(sha256).read_bytes()

    assert mended(store, attempt, said.append) == b"layer"
    assert len(said) == 1
    assert sha256 in said[0]
    assert said[0].endswith("it is fetched or made again")


def test_a_file_that_is_damaged_again_ends_the_attempt(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(DamagedFileError, match="is not there any more"):
        mended(store, lambda: store.sound("ab" * 32), lambda _: None)


def test_many_files_are_proven_and_the_damaged_one_is_named(tmp_path: Path) -> None:
    files = [kept(Store(tmp_path), bytes([number])) for number in range(20)]
    prove_all(Store(tmp_path), files)
    flip(Store(tmp_path).path(files[7]))
    with pytest.raises(DamagedFileError, match=files[7]):
        prove_all(Store(tmp_path), files)


def test_a_damaged_base_becomes_no_layer(tmp_path: Path) -> None:
    store = Store(tmp_path)
    sha256 = kept(store, b"base" * 1000)
    flip(store.path(sha256), 99)
    with pytest.raises(DamagedFileError) as raised:
        make_base_layer(sha256, store=store)
    assert raised.value.sha256 == sha256
    assert [kind for kind, _ in store.results()] == []


@pytest.mark.parametrize("place", range(0, 130, 3))
def test_a_record_with_any_flipped_bit_counts_as_none(tmp_path: Path, place: int) -> None:
    store, value = Store(tmp_path), {"digest": "sha256:" + "a" * 40, "size": 12}
    store.keep_result("layer", "k", value)
    flip(store.record("layer", "k"), place)
    assert store.result("layer", "k") in (None, value)  # a changed space changes nothing


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with (
        pytest.raises(DiskFullError, match=r"no space is left on the disk: the store .* has \d+ MiB") as raised,
        store.scratch(),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert raised.value.exit_code == 7
    assert "envbuild gc" in raised.value.remedy
    with pytest.raises(OSError, match="Input/output"), store.scratch():
        raise OSError(errno.EIO, "Input/output error")


def test_a_layer_that_does_not_fit_the_disk_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    with small_disk(tmp_path, megabytes=6):
        store = Store(tmp_path / "store")
        sha256 = kept(store, os.urandom(4 << 20))
        before = sorted(path for path in (tmp_path / "store" / "files").rglob("*") if path.is_file())
        with pytest.raises(BuildFailedError, match=r"no space is left on the disk: the store .* has [0-6] MiB"):
            make_base_layer(sha256, store=store)
        assert sorted(path for path in (tmp_path / "store" / "files").rglob("*") if path.is_file()) == before
        assert list((tmp_path / "store" / "tmp").iterdir()) == []
        assert list(store.results()) == []
        store.keep_result("layer", "k", {"still": "works"})


def test_who_wants_the_store_alone_waits_for_processes_that_have_it_open(tmp_path: Path) -> None:
    said: list[str] = []
    store = Store(tmp_path, said.append)
    code = "\n".join(OPENS)
    other = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdin is not None
    assert other.stdout is not None
    other.stdout.readline()
    alone = threading.Event()

    def hold() -> None:
        with store.alone():
            alone.set()

    thread = threading.Thread(target=hold)
    thread.start()
    assert not alone.wait(0.3)
    assert said == ["waiting: builds that use the store are running"]
    other.communicate(b"\n")
    thread.join(10)
    assert alone.is_set()
    Store(tmp_path)  # and the door is open again
