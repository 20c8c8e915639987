"""Work beside the caller's own, in threads that never hold it up: if it fails or is interrupted, theirs is given up."""

from __future__ import annotations

import contextvars
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Self, TypeVar

from builder.process import PROGRAMS, Programs

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
GRACE = 1.0  # seconds that given up work has to clean up


class Beside:
    """Threads that work while the caller does something else.

    Left by an exception, it ends the programs that the threads run and waits only until they have cleaned up: a thread
    that waits for the network is left alone, and does not keep the process alive.
    """

    def __init__(self) -> None:
        self._programs = Programs()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._programs.end()
        deadline = time.monotonic() + GRACE
        for thread in self._threads:
            thread.join(None if kind is None else max(0.0, deadline - time.monotonic()))

    def start(self, work: Callable[[], T]) -> Future[T]:
        """Begin some work; the result, or the exception that ended it, is in what comes back."""
        future: Future[T] = Future()
        context = contextvars.copy_context()
        context.run(PROGRAMS.set, self._programs)
        thread = threading.Thread(target=context.run, args=(_settle, future, work), daemon=True)
        self._threads.append(thread)
        thread.start()
        return future


def _settle(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
        future.set_exception(error)
