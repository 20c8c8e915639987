"""What a probe said: its JSON report as the last line, how it ended, the log that a failure keeps."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import builder
from builder.document import Document

if TYPE_CHECKING:
    from builder.engine import Exit
    from builder.store import Store
    from builder.verify.verdict import Check

SOURCE = Path(builder.__file__).parent
TAIL_LINES = 20

NO_REPORT = "something there answers in the probe's place: look at what its Python starts with (sitecustomize, .pth)"


class ProbeError(Document):
    """The exception that ended the probe: class, message, the module that is missing if it is that, the traceback."""

    kind: str
    message: str
    missing_module: str | None
    traceback: tuple[str, ...]

    @property
    def first_line(self) -> str:
        """The first line of the message."""
        return self.message.strip().partition("\n")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeAnswer:
    """What a probe said: its report (None: it ended without one), how it ended, and its last lines of log."""

    report: dict[str, Any] | None
    exit: Exit
    tail: tuple[str, ...]

    @property
    def ending(self) -> str:
        """How the container ended, in a few words."""
        if self.exit.timed_out:
            return f"no answer after {self.exit.seconds:.0f} s; it was ended"
        if self.exit.oom_killed:
            return "killed: out of the memory that the recipe's `smoke.memory` allows"
        return f"exit code {self.exit.code}"


def last_report(stdout: bytes) -> dict[str, Any] | None:
    """Return the JSON object in the last line of a probe's output, or None."""
    lines = stdout.decode(errors="replace").strip().splitlines()
    try:
        value = json.loads(lines[-1]) if lines else None
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def with_log(check: Check, answer: ProbeAnswer, store: Store) -> Check:
    """Return a check that failed with the log of its container, kept in the store; any other as it is.

    The lines that prove a failure are in a probe's report, so they are written below what the container said.
    """
    if check.outcome != "failed":
        return check
    ended = answer.exit
    log = ended.stdout + ended.stderr if answer.report is None else ended.stderr + _lines_of(check)
    return check.model_copy(update={"log": store.add_bytes(log)})


def _lines_of(check: Check) -> bytes:
    return "".join(f"{line}\n" for line in (*check.evidence, f"{check.name}: {check.summary}")).encode()


def tail_of(ended: Exit) -> tuple[str, ...]:
    """Return the last lines that a container wrote to standard error, else to standard output."""
    lines = (ended.stderr or ended.stdout).decode(errors="replace").rstrip().splitlines()
    return tuple(lines[-TAIL_LINES:])
