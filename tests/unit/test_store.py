from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from builder.errors import ResolveError, UsageError
from builder.giveup import GIVEN_UP
from builder.store import DOOR, Store

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_found_under_the_hash_of_its_bytes(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    with store.scratch() as folder:
        (folder / "a").write_bytes(b"wheel")
        sha256 = store.add(folder / "a")
    assert sha256 == hashlib.sha256(b"wheel").hexdigest()
    assert store.path(sha256).read_bytes() == b"wheel"


def test_bytes_that_are_not_what_the_lock_says_never_enter(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    with store.scratch() as folder:
        (folder / "torch.whl").write_bytes(b"tampered")
        with pytest.raises(ResolveError, match=r"torch\.whl has sha256"):
            store.add(folder / "torch.whl", "0" * 64)
    assert not any((tmp_path / "store" / "files").rglob("*"))


def test_a_file_that_was_hashed_while_it_was_written_is_kept_under_that_hash(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    sha256 = hashlib.sha256(b"layer").hexdigest()
    with store.scratch() as folder:
        (folder / "a").write_bytes(b"layer")
        store.keep(folder / "a", sha256)
        assert not (folder / "a").exists()
    assert store.sound(sha256).read_bytes() == b"layer"
    assert Store(tmp_path / "store").sound(sha256) == store.path(sha256)


def test_a_result_comes_back_until_it_is_forgotten(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert store.result("wheel", "k") is None
    store.keep_result("wheel", "k", {"sha256": "ab"})
    assert store.result("wheel", "k") == {"sha256": "ab"}
    store.forget_result("wheel", "k")
    assert store.result("wheel", "k") is None


def test_a_damaged_result_counts_as_none(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.keep_result("wheel", "k", {"sha256": "ab"})
    (tmp_path / "store/results/wheel/k.json").write_text('{"sha256": ')
    assert store.result("wheel", "k") is None


def test_scratch_folders_of_dead_processes_are_swept_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for pid in (dead.pid, os.getpid()):
        (tmp_path / f"store/tmp/{pid}-x").mkdir()
    with store.scratch() as folder:
        assert folder.is_dir()
    assert [p.name for p in (tmp_path / "store/tmp").iterdir()] == [f"{os.getpid()}-x"]


def test_a_lock_keeps_a_second_process_out_and_ends_with_its_holder(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    code = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'wb')\n"
        "try:\n fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError:\n sys.exit(7)\n"
    )
    attempt = [sys.executable, "-c", code, str(tmp_path / "store/locks/job")]
    with store.exclusive("job"):
        assert subprocess.run(attempt, check=False).returncode == 7
    assert subprocess.run(attempt, check=False).returncode == 0


def test_who_waits_for_a_lock_gets_it_when_it_is_free_or_ends_when_its_work_is_given_up(tmp_path: Path) -> None:
    waiting, given_up = threading.Semaphore(0), threading.Event()
    store = Store(tmp_path / "store", lambda _: waiting.release())

    def work() -> str:
        with store.exclusive("job"):
            return "done"

    with (
        ThreadPoolExecutor() as patient,
        ThreadPoolExecutor(initializer=GIVEN_UP.set, initargs=(given_up,)) as stopped,
    ):
        with store.exclusive("job"):
            one, other = patient.submit(work), stopped.submit(work)
            assert waiting.acquire(timeout=60)
            assert waiting.acquire(timeout=60)
            given_up.set()
            assert isinstance(other.exception(60), CancelledError)
            assert not one.done()
        assert one.result(60) == "done"


def test_a_store_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        Store(tmp_path / "file" / "store")


def test_a_store_that_became_read_only_is_the_same_sentence(tmp_path: Path) -> None:
    root = tmp_path / "store"
    Store(root)
    (root / "locks" / DOOR).unlink()
    (root / "locks" / DOOR).mkdir()  # stands for a disk that was mounted read-only: root may write everything else
    with pytest.raises(UsageError, match=f"the store {root} cannot be written: Is a directory"):
        Store(root)


def test_a_path_that_apt_cannot_name_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has '%' in it"):
        Store(tmp_path / "100%")
    assert not (tmp_path / "100%").exists()
