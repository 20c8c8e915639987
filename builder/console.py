"""All that a person sees: steps with their time, notes, errors. Standard output carries data only."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console as RichConsole
    from rich.console import RenderableType
    from rich.status import Status

    from builder.errors import EnvbuildError

WIDE = 240  # columns of a table that goes to a file or a pipe


class Step:
    """A running step; `detail` replaces the small text beside it, from any thread."""

    def __init__(self, text: str, status: Status | None) -> None:
        self.text = text
        self._status = status
        self._shown = 0.0
        self.outcome = ""

    def detail(self, text: str) -> None:
        """Show what the step does now (on a terminal; elsewhere details are left out)."""
        now = time.monotonic()
        if self._status is not None and now - self._shown > 0.1:
            self._shown = now
            self._status.update(f"{_escape(self.text)} [dim]{_escape(text[:120])}[/]")

    def end(self, text: str) -> None:
        """Say in a few words how the step ended, for its closing line."""
        self.outcome = text


class Console:
    """Writes for people to standard error and documents for machines to standard output."""

    def __init__(self, *, json: bool = False, verbose: bool = False, out: TextIO | None = None) -> None:
        self.json = json
        self.verbose = verbose
        self._out = out or sys.stdout
        self._lock = threading.Lock()

    @cached_property
    def _err(self) -> RichConsole:
        from rich.console import Console as RichConsole  # noqa: PLC0415 - slow to import; data alone needs none of it

        return RichConsole(stderr=True, highlight=False, soft_wrap=True)

    @property
    def is_terminal(self) -> bool:
        """Whether a person watches a terminal."""
        return self._err.is_terminal

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[Step]:
        """Show a step while it runs and one line with its time at the end; an exception marks it as failed."""
        start = time.monotonic()
        status = self._err.status(_escape(text)) if self.is_terminal else None
        step = Step(text, status)
        if status is not None:
            status.start()
        elif self.verbose:
            self._line(f"  … {_escape(text)}")
        try:
            yield step
        except BaseException:
            self._close(status, f"  [red]✗[/] {_escape(text)} [dim]({time.monotonic() - start:.1f} s)[/]")
            raise
        outcome = f": {_escape(step.outcome)}" if step.outcome else ""
        self._close(status, f"  [green]✓[/] {_escape(text)}{outcome} [dim]({time.monotonic() - start:.1f} s)[/]")

    def current(self, text: str) -> None:
        """Say that a step had nothing to do."""
        self._line(f"  [dim]= {_escape(text)}: current[/]")

    def say(self, text: str) -> None:
        """Show a line to the person."""
        self._line(_escape(text))

    def heading(self, text: str) -> None:
        """Show a line that begins a part."""
        self._line(f"[bold]{_escape(text)}[/]")

    def warn(self, text: str) -> None:
        """Show a warning."""
        self._line(f"  [yellow]![/] {_escape(text)}")

    def verdict(self, result: str, text: str) -> None:
        """Show the closing line of a road: the verdict in its colour and one sentence."""
        colour = {"good": "green", "bad": "red"}.get(result, "yellow")
        self._line(f"[bold {colour}]{_escape(result)}[/]: {_escape(text)}")

    def error(self, error: EnvbuildError) -> None:
        """Show a failure: the sentence, the lines that prove it, the remedy."""
        self._line(f"[bold red]error[/]: {_escape(error.message)}")
        for line in error.evidence:
            self._line(f"  [dim]|[/] {_escape(line)}")
        if error.remedy:
            self._line(f"  [cyan]→[/] {_escape(error.remedy)}")

    def document(self, value: Any) -> None:  # noqa: ANN401 - any JSON value
        """Write the one JSON document of a `--json` call to standard output."""
        from builder.document import pretty_json  # noqa: PLC0415 - as above

        self._out.write(pretty_json(value).decode())
        self._out.flush()

    def output(self, text: str) -> None:
        """Write text that a person asked for to standard output."""
        self._out.write(text if text.endswith("\n") else text + "\n")
        self._out.flush()

    def show(self, table: RenderableType) -> None:
        """Write a table that a person asked for to standard output, in colour where that is a terminal."""
        from rich.console import Console as RichConsole  # noqa: PLC0415 - as above

        width = None if self._out.isatty() else WIDE
        RichConsole(file=self._out, highlight=False, width=width).print(table)

    def _close(self, status: Status | None, line: str) -> None:
        if status is not None:
            status.stop()
        self._line(line)

    def _line(self, markup: str) -> None:
        with self._lock:
            self._err.print(markup)


class InnerConsole(Console):
    """Shows all that is said as the small text beside a step of another console."""

    def __init__(self, outer: Step) -> None:
        super().__init__()
        self._outer = outer

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[Step]:
        """Show a step, and what it does, beside the outer one."""
        self._outer.detail(text)
        yield self._outer

    def _line(self, markup: str) -> None:
        from rich.text import Text  # noqa: PLC0415 - as above

        self._outer.detail(Text.from_markup(markup).plain.strip())


def _escape(text: str) -> str:
    """Return text that rich shows as it is, whatever brackets are in it."""
    from rich.markup import escape  # noqa: PLC0415 - as above

    return escape(text)
