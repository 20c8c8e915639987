"""How far a compilation is: the counters of ninja and make, found in what they print."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.console import Console, Step

NINJA = re.compile(r"^\[(\d+)/(\d+)\] ")  # $NINJA_STATUS, unless a package sets its own
MAKE = re.compile(r"^\[ {0,2}(\d{1,3})%\] ")  # the makefiles of CMake
FEW_SECONDS = 10.0


def units_in(line: str) -> tuple[int, int] | None:
    """Return how many units are done, of how many, if a line of ninja's or make's says it; make counts per cent."""
    found = NINJA.match(line)
    if found:
        return int(found[1]), int(found[2])
    found = MAKE.match(line)
    return (int(found[1]), 100) if found else None


class UnitProgress:
    """Shows the units done beside a step; where nobody watches a terminal, a line for each tenth of them.

    `shown` is what is seen of them now.
    """

    def __init__(self, name: str, step: Step, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._step = step
        self._console = console
        self._clock = clock
        self._start = clock()
        self._begun: int | None = None
        self._tenths = 0
        self.shown = ""

    def hear(self, line: str) -> None:
        """Take a line of the compilation."""
        units = units_in(line)
        if units is not None:
            self._count(*units)
        if self._console.verbose:
            self._console.say(line)
        else:
            self._step.detail(self.shown or line)

    def _count(self, done: int, total: int) -> None:
        seconds = self._clock() - self._start
        if self._begun is None:
            self._begun = done - 1
        made = done - self._begun
        left = seconds / made * (total - done)
        unit = "%" if total == 100 else f" of {total} files"
        self.shown = f"{done}{unit}" + (f", about {shown_time(left)} left" if seconds > FEW_SECONDS else "")
        tenths = 10 * done // total
        if tenths > self._tenths and seconds > FEW_SECONDS and not self._console.is_terminal:
            self._console.say(f"    {self._name}: {self.shown}")
        self._tenths = tenths


def shown_time(seconds: float) -> str:
    """Return a duration in the unit that suits it, such as `40 s` or `95 min`."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
