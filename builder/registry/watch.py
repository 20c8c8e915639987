"""Who looks on at a transfer, and can stop it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.registry.faults import StoppedError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, kw_only=True)
class Watch:
    """`on_bytes` is told how many bytes of the one transfer are there; `stop` ends all transfers that share it."""

    on_bytes: Callable[[int], None] = lambda _: None
    stop: threading.Event = field(default_factory=threading.Event)

    def at(self, position: int) -> None:
        """Tell how far the transfer is; raises StoppedError if it shall end."""
        if self.stop.is_set():
            raise StoppedError
        self.on_bytes(position)

    def pause(self, seconds: float) -> None:
        """Wait before the next attempt; raises StoppedError if the transfer shall end."""
        if self.stop.wait(seconds):
            raise StoppedError
