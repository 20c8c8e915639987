"""What the road is travelled with: the machine's settings, the store, the console, the container engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from builder.registry.share import open_share

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.console import Console, Step
    from builder.download import Progress
    from builder.engine import Engine
    from builder.registry.share import Sharing
    from builder.settings import Settings
    from builder.store import Store


@dataclass(frozen=True, kw_only=True)
class Tools:
    """The tools of every stage. The engine is connected to when a stage first needs it.

    With `retry` a compilation that failed before with the same inputs is tried again.
    """

    settings: Settings
    store: Store
    console: Console
    connect: Callable[[], Engine]
    retry: bool = False

    @cached_property
    def engine(self) -> Engine:
        """The container engine; raises EngineError, with the remedy, if there is none."""
        return self.connect()

    @cached_property
    def share(self) -> Sharing:
        """Where the user's machines share wheels and layers, if anywhere; raises UsageError if it is no name."""
        return open_share(self.settings, self.store, self.console.warn)


def show_progress(step: Step) -> Callable[[Progress], None]:
    """Return what shows downloads beside a step."""
    return lambda progress: step.detail(f"{progress.done >> 20} of {progress.total >> 20} MiB, {progress.label}")


def show_lines(step: Step, console: Console) -> Callable[[str], None]:
    """Return what shows a program's lines: the newest beside the step, all of them for `--verbose`."""
    return console.say if console.verbose else step.detail
