"""The deadline of a server's first answer: what it counts and what not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.verify.probe.patience import Patience

if TYPE_CHECKING:
    import pytest


class Clock:
    """A clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("builder.verify.probe.patience.time.monotonic", lambda: self.now)

    def passed(self, patience: Patience, seconds: int) -> bool:
        """Let seconds pass, looking at each of them, and say whether the time is up."""
        return [self._tick(patience) for _ in range(seconds)][-1]

    def _tick(self, patience: Patience) -> bool:
        self.now += 1
        return patience.over()


def test_without_a_compiler_the_deadline_is_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    patience = Patience(10, 100, lambda: False)
    assert not clock.passed(patience, 10)
    assert clock.passed(patience, 1)
    assert patience.compiled == 0


def test_the_clock_stands_still_while_a_compiler_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, running = Clock(monkeypatch), [False]
    patience = Patience(10, 100, lambda: running[0])
    assert not clock.passed(patience, 9)
    running[0] = True
    assert not clock.passed(patience, 50)
    running[0] = False
    assert (clock.passed(patience, 1), clock.passed(patience, 1)) == (False, True)
    assert patience.compiled == 50


def test_a_compiler_that_never_ends_is_granted_its_allowance_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    patience = Patience(10, 30, lambda: True)
    assert patience.longest == 40
    assert not clock.passed(patience, 40)
    assert clock.passed(patience, 1)
    assert (patience.compiled, patience.longest) == (30, 0)


def test_the_processes_are_looked_at_once_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    looks: list[float] = []

    def looked() -> bool:
        looks.append(clock.now)
        return False

    patience = Patience(10, 30, looked)
    for _ in range(20):
        clock.now += 0.1
        patience.over()
    assert len(looks) in {1, 2}
