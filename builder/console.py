"""All that a person sees: steps with their time, notes, errors. Standard output carries data only."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.status import Status

    from builder.errors import EnvbuildError

WIDE = 240  # columns of a table that goes to a file or a pipe
# ECMA-48, "select graphic rendition"
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


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
    def is_terminal(self) -> bool:
        """Whether a person watches a terminal."""
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    @cached_property
    def _colour(self) -> bool:
        """Whether to write in colour and bold: on a terminal, if the environment does not say otherwise."""
        return not _plain() and bool(self.is_terminal or os.environ.get("FORCE_COLOR"))

    @cached_property
    def _is_unicode(self) -> bool:
        """Whether standard output can hold every character."""
        return (self._out.encoding or "utf-8").lower().startswith("utf")

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[Step]:
        """Show a step while it runs and one line with its time at the end; an exception marks it as failed."""
        start = time.monotonic()
        status = _spinner(text) if self.is_terminal else None
        step = Step(text, status)
        if status is not None:
            status.start()
        elif self.verbose:
            self._line(f"  … {text}")
        try:
            yield step
        except BaseException:
            self._close(status, f"  {self._in('red', '✗')} {text} {self._since(start)}")
            raise
        outcome = f": {step.outcome}" if step.outcome else ""
        self._close(status, f"  {self._in('green', '✓')} {text}{outcome} {self._since(start)}")

    def current(self, text: str) -> None:
        """Say that a step had nothing to do."""
        self._line(f"  {self._in('dim', f'= {text}: current')}")

    def say(self, text: str) -> None:
        """Show a line to the person."""
        self._line(text)

    def heading(self, text: str) -> None:
        """Show a line that begins a part."""
        self._line(self._in("bold", text))

    def warn(self, text: str) -> None:
        """Show a warning."""
        self._line(f"  {self._in('yellow', '!')} {text}")

    def verdict(self, result: str, text: str) -> None:
        """Show the closing line of a road: the verdict in its colour and one sentence."""
        colour = {"good": "green", "bad": "red"}.get(result, "yellow")
        self._line(f"{self._in(f'bold {colour}', result)}: {text}")

    def error(self, error: EnvbuildError) -> None:
        """Show a failure: the sentence, the lines that prove it, the remedy."""
        self._line(f"{self._in('bold red', 'error')}: {error.message}")
        for line in error.evidence:
            self._line(f"  {self._in('dim', '|')} {line}")
        if error.remedy:
            self._line(f"  {self._in('cyan', '→')} {error.remedy}")

    def document(self, value: Any) -> None:  # noqa: ANN401 - any JSON value
        """Write the one JSON document of a `--json` call to standard output."""
        text = json.dumps(value, indent=2, ensure_ascii=not self._is_unicode) + "\n"
        self._out.write(text.encode(errors="backslashreplace").decode())  # names of files may be no UTF-8
        self._out.flush()

    def output(self, text: str) -> None:
        """Write text that a person asked for to standard output."""
        self._out.write(text if text.endswith("\n") else text + "\n")
        self._out.flush()

    def show(self, table: RenderableType) -> None:
        """Write a table that a person asked for to standard output, in colour where that is a terminal."""
        from rich.console import Console as RichConsole  # noqa: PLC0415 - as above

        colours: Literal["auto"] | None = None if _plain() else "auto"
        at_terminal = self._out.isatty()
        text = io.StringIO()
        RichConsole(
            file=self._out if at_terminal else text,
            width=None if at_terminal else WIDE,
            color_system=colours,
            markup=False,  # cells quote what programs said
            emoji=False,
            highlight=False,
        ).print(table)
        if at_terminal:
            return
        self.output("\n".join(line.rstrip() for line in text.getvalue().splitlines()))

    def _close(self, status: Status | None, line: str) -> None:
        if status is not None:
            status.stop()
        self._line(line)

    def _line(self, text: str) -> None:
        """Write a line; while a step shows its spinner, rich puts it above."""
        with self._lock:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def _since(self, start: float) -> str:
        return self._in("dim", f"({time.monotonic() - start:.1f} s)")

    def _in(self, styles: str, text: str) -> str:
        """Return a text in some styles, plain where no person watches or where they want no colour."""
        if not self._colour:
            return text
        return f"\x1b[{';'.join(_STYLES[style] for style in styles.split())}m{text}\x1b[0m"


def _plain() -> bool:
    return bool(os.environ.get("NO_COLOR"))  # no-color.org


def _spinner(text: str) -> Status:
    from rich.console import Console as RichConsole  # noqa: PLC0415 - slow to import, and many commands have no step

    return RichConsole(stderr=True, highlight=False, soft_wrap=True).status(_escape(text))


class InnerConsole(Console):
    """Shows all that is said as the small text beside a step of another console."""

    def __init__(self, outer: Step) -> None:
        super().__init__()
        self._outer = outer
        self._colour = False  # the step that shows it has a style of its own

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[Step]:
        """Show a step, and what it does, beside the outer one."""
        self._outer.detail(text)
        yield self._outer

    def _line(self, text: str) -> None:
        self._outer.detail(text.strip())


def _escape(text: str) -> str:
    """Return text that rich shows as it is, whatever brackets are in it."""
    from rich.markup import escape  # noqa: PLC0415 - as above

    return escape(text)
