"""One line of a log taken apart: its text, its rank, its time, whether it only warns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from builder.diagnose.pattern import fold

SHOWN = 600
_HEAD = 160
_RANKS = (
    re.compile(r"\b((?:(?:DP|PP)\d{1,4} )?TP\d{1,4})\b"),
    re.compile(r"_((?:DP|PP|TP|EP)\d{1,4})\b"),
    re.compile(r"\b[Rr]ank[ =:]?(\d{1,5})\]?"),
    re.compile(r"^\[\d{1,4},(\d{1,5})\]<std"),
    re.compile(r"\b((?:DP|PP|EP)\d{1,4})\b"),
)
_TIME = re.compile(r"(?:\d{4}-\d\d-\d\d[T ]|\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?")
_PREFIXES = (
    re.compile(r"\[[^\]]{0,120}\](?:<std(?:err|out)>)?:?\s*"),
    re.compile(r"\([^()]{0,60}pid=[^()]{0,60}\)\s*"),
    re.compile(r"#\d{1,4} \d{1,7}\.\d{1,4}\s+"),
    re.compile(r"(?:TRACE|DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)\b:?\s*"),
    re.compile(r"(?:\d{4}-\d\d-\d\d[T ]|\d\d-\d\d )\d\d:\d\d:\d\d(?:[.,]\d{1,9})?Z?\s*"),
    re.compile(r"[\w.-]{1,40}\s{1,4}\|\s"),
)
_MOST_PREFIXES = 8
_MILD = re.compile(r"(?<!NCCL )\b(?:TRACE|DEBUG|INFO|WARNING|WARN)\b|\b[A-Za-z]{0,40}[Ww]arning:")


@dataclass(frozen=True)
class LogLine:
    """A line that may matter: its number from 1, its bytes, the log it is from; the rest is worked out on demand."""

    number: int
    raw: bytes
    log: str

    @cached_property
    def text(self) -> str:
        """The whole line; bytes that are not UTF-8 are replaced."""
        return self.raw.decode("utf-8", "replace").strip()

    @property
    def shown(self) -> str:
        """The text as evidence shows it."""
        return self.text[:SHOWN]

    @cached_property
    def folded(self) -> str:
        """The text as patterns see it, without what loggers put before it."""
        return fold(_without_prefix(self.text))

    @cached_property
    def rank(self) -> str | None:
        """The rank that the line names, if any."""
        return rank_of(self.text[:_HEAD])

    @cached_property
    def time(self) -> str | None:
        """The time as the line writes it, if it has one."""
        found = _TIME.search(self.text[:_HEAD])
        return found[0] if found else None

    @cached_property
    def mild(self) -> bool:
        """Whether the line is a warning or a note by its own level."""
        return _MILD.search(self.shown) is not None


def rank_of(head: str) -> str | None:
    """Return the rank that the beginning of a line names (`TP3`, `DP0 TP1`, `rank 3`), if any."""
    for pattern in _RANKS:
        found = pattern.search(head)
        if found:
            return f"rank {found[1]}" if found[1].isdigit() else found[1]
    return None


def _without_prefix(text: str) -> str:
    """Cut what loggers, process managers and image builds put before the words."""
    start = 0
    for _ in range(_MOST_PREFIXES):
        found = next((match for prefix in _PREFIXES if (match := prefix.match(text, start))), None)
        if found is None or found.end() == start:
            break
        start = found.end()
    return text[start:] or text
