"""A deadline whose clock stands still while a compiler works: compiling takes minutes and is no fault."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_SECONDS = 1.0


class Patience:
    """`seconds` of waiting, and at most `allowance` seconds more during which `compiles()` was true."""

    def __init__(self, seconds: float, allowance: float, compiles: Callable[[], bool]) -> None:
        self._compiles = compiles
        self._looked = time.monotonic()
        self._end = self._looked + seconds
        self._allowance = allowance
        self.compiled = 0.0

    def over(self) -> bool:
        """Say whether the time is up; looks for compilers at most once a second, for the time since the last look."""
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            passed, self._looked = now - self._looked, now
            if self.compiled < self._allowance and self._compiles():
                granted = min(passed, self._allowance - self.compiled)
                self.compiled += granted
                self._end += granted
        return now > self._end

    @property
    def longest(self) -> float:
        """The seconds that may still pass, however much is compiled."""
        return max(self._end + self._allowance - self.compiled - time.monotonic(), 0.0)
