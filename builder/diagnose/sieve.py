"""The first look at a log: which lines can matter at all, found in its bytes at the speed of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from builder.diagnose.pattern import ANCHOR

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

_TABLE_BITS = 19
_MULTIPLIER = np.uint32(0x9E3779B1)
_SHIFT = np.uint32(32 - _TABLE_BITS)
_CASE = np.uint32(0x20202020)
_CASE8 = np.uint64(0x2020202020202020)
_SEVEN = np.uint64((1 << (8 * ANCHOR)) - 1)
_MARGIN = 8
LONGEST_LINE = 1 << 14


@dataclass(frozen=True, slots=True)
class Candidate:
    """A piece of a line that holds anchors: its line number within the block (from 0), its bytes, and which anchors."""

    line: int
    text: bytes
    anchors: frozenset[bytes]


class Sieve:
    """Finds 7-byte anchors in blocks of a log, whatever their case.

    An anchor of 7 bytes always covers one whole aligned 4-byte word of the text, so only every fourth position is
    looked up: four words per anchor go into a hashed table, and what passes is compared with the full anchors.
    """

    def __init__(self, anchors: Iterable[bytes]) -> None:
        by_value = {_value(anchor): anchor for anchor in anchors}
        self._by_value = by_value
        self._values = np.array(sorted(by_value), dtype=np.uint64)
        self._table = np.zeros(1 << _TABLE_BITS, dtype=np.bool_)
        words = [anchor[at : at + 4] for anchor in by_value.values() for at in range(4)]
        self._table[_hash(np.frombuffer(b"".join(words), dtype="<u4"))] = True

    def candidates(self, block: bytes) -> Iterator[Candidate]:
        """Yield the pieces of lines of `block` (whole lines) that hold an anchor, in order."""
        padded = b"\n" * _MARGIN + block + b"\n" * (_MARGIN - len(block) % 4)
        line, start, stop = 0, 0, -1
        begin, end, held = 0, -1, set[bytes]()
        for position, anchor in self._hits(padded):
            if position < end:
                held.add(anchor)
                continue
            if held:
                yield Candidate(line, block[begin:end], frozenset(held))
            if position > stop:
                line += block.count(b"\n", start, position)
                start, stop = _line_around(block, position)
            begin, end = _piece_around(block, position, start, stop)
            held = {anchor}
        if held:
            yield Candidate(line, block[begin:end], frozenset(held))

    def _hits(self, padded: bytes) -> Iterator[tuple[int, bytes]]:
        """Return where in the block (without its padding) each anchor begins, in order."""
        words = np.frombuffer(padded, dtype="<u4", count=len(padded) // 4)
        found = np.flatnonzero(self._table[_hash(words)]) * 4
        starts = (found[:, None] - np.arange(4)).ravel()
        starts = starts[(starts >= 0) & (starts <= len(padded) - _MARGIN)]
        windows: NDArray[np.uint64] = np.ndarray((len(padded) - 7,), dtype="<u8", buffer=padded, strides=(1,))
        values = (windows[starts] | _CASE8) & _SEVEN
        nearest = np.minimum(np.searchsorted(self._values, values), len(self._values) - 1)
        exact = self._values[nearest] == values
        places, order = np.unique(starts[exact], return_index=True)
        kept = values[exact][order]
        return ((int(at) - _MARGIN, self._by_value[int(value)]) for at, value in zip(places, kept, strict=True))


def _hash(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return table places for 4-byte words, the same for both cases of a letter."""
    return ((words | _CASE) * _MULTIPLIER) >> _SHIFT


def _value(anchor: bytes) -> int:
    return int.from_bytes(anchor, "little") | (int(_CASE8) & int(_SEVEN))


def _line_around(block: bytes, position: int) -> tuple[int, int]:
    stop = block.find(b"\n", position)
    return block.rfind(b"\n", 0, position) + 1, len(block) if stop < 0 else stop


def _piece_around(block: bytes, position: int, start: int, stop: int) -> tuple[int, int]:
    """Cut a line at the carriage returns of progress bars, and to a bounded length."""
    left = block.rfind(b"\r", max(start, position - LONGEST_LINE // 4), position) + 1
    right = block.find(b"\r", position, stop)
    begin = max(start, left, position - LONGEST_LINE // 4)
    return begin, min(stop if right < 0 else right, begin + LONGEST_LINE)
