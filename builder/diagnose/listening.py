"""Which patterns are still listened for, and by which anchors: what a log repeats is soon no longer looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.diagnose.sieve import Candidate, Sieve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from builder.diagnose.pattern import Pattern

OFTEN = 32
SAME_SHAPE = 256
MOST_SHAPES = 4096
MOST_MOVES = 256
COMMON_LINES = 16
COMMON_LENGTH = 1024
_DIGITS = b"0123456789"


class Listener:
    """Finds lines worth matching, at a cost that does not grow with how often a log repeats itself.

    Every pattern is found by one of many possible anchors. Where an anchor turns out to be part of a line that comes
    again and again, its patterns move to anchors that this line does not hold, which loses nothing. Patterns that have
    said enough are not listened for until `again` is called. Lines that differ from 256 earlier ones only in digits
    are passed over.
    """

    def __init__(self, patterns: Mapping[str, Pattern]) -> None:
        self._patterns = patterns
        self._anchors = {source: pattern.anchors for source, pattern in patterns.items()}
        self._enough: set[str] = set()
        self._often: dict[bytes, int] = {}
        self._shapes: dict[bytes, int] = {}
        self._common: list[str] = []
        self._moves = 0
        self._retune()

    def candidates(self, block: bytes) -> Iterator[tuple[Candidate, list[str]]]:
        """Yield the lines of a block that may matter, with the patterns to try on each."""
        if self._stale:
            self._retune()
        for candidate in self._sieve.candidates(block):
            if not self._quiet.issuperset(candidate.anchors) and not self._is_repetition(candidate.text):
                sources = self._worth(candidate)
                if sources:
                    yield candidate, sources

    def enough(self, source: str) -> None:
        """Listen no more for a pattern."""
        self._enough.add(source)
        self._quiet.update(a for a in self._anchors[source] if self._enough.issuperset(self._index.get(a, ())))
        self._stale = True

    def again(self, sources: Iterable[str]) -> None:
        """Listen for patterns again that had said enough."""
        self._shapes.clear()
        before = len(self._enough)
        self._enough.difference_update(sources)
        if len(self._enough) != before:
            self._quiet.clear()
            self._stale = True

    def _is_repetition(self, text: bytes) -> bool:
        shape = text.translate(None, _DIGITS)
        seen = self._shapes.get(shape, 0)
        if len(self._shapes) >= MOST_SHAPES:
            self._shapes.clear()
        self._shapes[shape] = seen + 1
        return seen >= SAME_SHAPE

    def _worth(self, candidate: Candidate) -> list[str]:
        """Return the patterns of a line's anchors of which a whole literal is in the line."""
        text = b" ".join(candidate.text.lower().split()) + b"\n"
        found = set()
        for anchor in candidate.anchors:
            self._notice(anchor, text)
            for source in self._index[anchor]:
                if source not in self._enough and any(literal in text for literal in self._patterns[source].literals):
                    found.add(source)
        return sorted(found)

    def _notice(self, anchor: bytes, text: bytes) -> None:
        """Move the patterns of an anchor away from a line that holds it for the 32nd, 64th, 128th, ... time."""
        times = self._often.get(anchor, 0) + 1
        self._often[anchor] = times
        if times % OFTEN or times & (times - 1) or self._moves >= MOST_MOVES:
            return
        self._moves += 1
        self._common = [*self._common[1 - COMMON_LINES :], text[:COMMON_LENGTH].decode("latin-1")]
        common = "".join(self._common)
        for source in self._index[anchor]:
            self._anchors[source] = self._patterns[source].anchors_avoiding(common)
        self._stale = True

    def _retune(self) -> None:
        """Make the sieve for the patterns that are listened for now."""
        index: dict[bytes, list[str]] = {}
        for source, anchors in self._anchors.items():
            if source not in self._enough:
                for anchor in anchors:
                    index.setdefault(anchor, []).append(source)
        self._index = index
        self._quiet: set[bytes] = set()
        self._sieve = Sieve(index)
        self._stale = False
