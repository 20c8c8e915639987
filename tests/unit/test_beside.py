"""Work in threads beside the caller's own: its result, its fault, and what becomes of it when the caller gives up."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from builder.beside import Beside
from builder.process import StoppedError, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path


def give_up(work: Callable[[], object], when: Callable[[], bool]) -> Future[object]:
    """Begin some work, and fail as soon as `when` says so."""
    with contextlib.suppress(KeyboardInterrupt), Beside() as beside:
        future = beside.start(work)
        while not when():
            time.sleep(0.01)
        raise KeyboardInterrupt
    return future


def test_a_result_and_a_fault_come_to_whoever_asks() -> None:
    with Beside() as beside:
        good, bad = beside.start(lambda: 1), beside.start(lambda: 1 // 0)
        assert good.result() == 1
        with pytest.raises(ZeroDivisionError):
            bad.result()


def test_all_work_is_done_at_the_end() -> None:
    done: list[int] = []
    with Beside() as beside:
        for number in range(20):
            beside.start(lambda number=number: done.append(number))  # type: ignore[misc]
    assert sorted(done) == list(range(20))


def test_who_gives_up_ends_the_programs_of_the_work_and_lets_it_clean_up(tmp_path: Path) -> None:
    said: list[str] = []

    def work() -> None:
        try:
            first = run(["sh", "-c", f"echo $$ > {tmp_path}/pid; touch {tmp_path}/ready; exec sleep 600"])
            said.append(f"ended with {first.code}")
            run(["sleep", "600"])
        except StoppedError:
            said.append("stopped")

    give_up(work, (tmp_path / "ready").exists)
    assert said == ["ended with -9", "stopped"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_programs_of_others_go_on() -> None:
    with pytest.raises(ValueError, match="given up"), Beside():
        raise ValueError("given up")
    assert run(["true"]).code == 0


def test_work_that_waits_for_something_else_is_left_alone() -> None:
    never = threading.Event()
    future = give_up(never.wait, lambda: True)
    assert not future.done()
    never.set()
    assert future.result() is True
