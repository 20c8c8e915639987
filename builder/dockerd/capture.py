"""What a container writes: the attach stream taken apart, lines as they come, a log of bounded size."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STDOUT = 1
STDERR = 2
HEAD_BYTES = 1 << 20
TAIL_BYTES = 4 << 20
LINE_BYTES = 8192

_HEADER = struct.Struct(">BxxxL")


class Frames:
    """Takes the engine's attach stream apart: a header (stream, three zeros, length as u32 big-endian), then bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield (stream, bytes) for every frame that is complete now; stream is STDOUT or STDERR."""
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            stream, length = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            yield stream, bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]


class Lines:
    """Hands on whole lines as text; a line longer than LINE_BYTES comes in pieces."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._pending = b""

    def feed(self, data: bytes) -> None:
        """Take bytes as they come and hand on each line that ends in them."""
        *whole, self._pending = (self._pending + data).split(b"\n")
        for line in whole:
            self._hand_on(line)
        while len(self._pending) > LINE_BYTES:
            piece, self._pending = self._pending[:LINE_BYTES], self._pending[LINE_BYTES:]
            self._hand_on(piece)

    def close(self) -> None:
        """Hand on what came after the last newline."""
        if self._pending:
            self._hand_on(self._pending)
        self._pending = b""

    def _hand_on(self, line: bytes) -> None:
        shown = line.rstrip().rpartition(b"\r")[2]  # a progress bar redraws its line: only the last state counts
        self._on_line(shown.decode(errors="replace"))


class BoundedLog:
    """Keeps the head and the tail of what is written to it, never more than `head` plus twice `tail` bytes."""

    def __init__(self, *, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._head_limit = head
        self._tail_limit = tail
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        """Take more bytes."""
        room = self._head_limit - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._tail_limit:
            self._trim()

    def value(self) -> bytes:
        """Return all bytes, or head and tail with a line between them that counts what is left out."""
        if len(self._tail) > self._tail_limit:
            self._trim()
        if not self._dropped:
            return bytes(self._head + self._tail)
        return b"%s\n[... %d bytes left out ...]\n%s" % (self._head, self._dropped, self._tail)

    def _trim(self) -> None:
        surplus = len(self._tail) - self._tail_limit
        del self._tail[:surplus]
        self._dropped += surplus
