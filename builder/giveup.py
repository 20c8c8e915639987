"""Work in threads that is given up: what waits in such a thread, for a lock or for a container, waits no longer."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading

GIVEN_UP: ContextVar[threading.Event | None] = ContextVar("GIVEN_UP", default=None)
"""Whether the work of this thread is given up: set for a thread by who starts it."""


def keep_on(seconds: float = 0.0) -> None:
    """Let so many seconds pass; raise CancelledError as soon as the work of this thread is given up."""
    given_up = GIVEN_UP.get()
    if given_up is None:
        time.sleep(seconds)
    elif given_up.wait(seconds):
        raise CancelledError
