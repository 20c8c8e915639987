"""Logs as blocks of whole lines: files, gzip, standard input, any size, without escape sequences."""

from __future__ import annotations

import io
import itertools
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol, runtime_checkable

from isal import isal_zlib

from builder.errors import InvalidDocumentError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from pathlib import Path

BLOCK = 1 << 18
MOST_CONTROLS = 0.05  # of the first bytes; more means that this is no text
_TEXT = bytes(byte for byte in range(256) if (byte >= 32 and byte != 127) or byte in b"\t\n\r\f\b\a\x1b")
_GZIP = b"\x1f\x8b"
_GZIP_WINDOW = 31
_ESCAPE = re.compile(rb"\x1b(?:\[[0-9;?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\)|[@-Z\\^_])")


@runtime_checkable
class Readable(Protocol):
    """A binary stream: an open file, standard input, the output of a container."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, none at the end."""


def unheard(_warning: str) -> None:
    """Take a warning that nobody waits for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """A log to read once: its name as evidence shows it, and its bytes piece by piece.

    One that a person named, `checked`, is an InvalidDocumentError if it is empty or no text. `warn` hears that it is
    cut off.
    """

    name: str
    pieces: Iterator[bytes]
    checked: bool = False
    warn: Callable[[str], None] = unheard


def open_log(path: Path, warn: Callable[[str], None] = unheard) -> Log:
    """Open a log file, plain or gzip, or standard input for `-`; raise UsageError if it cannot be read."""
    try:
        stream: BinaryIO = sys.stdin.buffer if str(path) == "-" else path.open("rb")
    except OSError as error:
        remedy = "give the path of a log, or - for standard input"
        raise UsageError(f"{path}: cannot be read: {error.strerror}", remedy=remedy) from None
    name = "standard input" if str(path) == "-" else str(path)
    return Log(name=name, pieces=_pieces(stream), checked=True, warn=warn)


def log_of(lines: Readable | Iterable[str] | Iterable[bytes], *, name: str = "log") -> Log:
    """Return lines (with or without their newlines) or a binary stream as a log."""
    if isinstance(lines, Readable):
        return Log(name=name, pieces=_pieces(lines))
    return Log(name=name, pieces=(_line_bytes(line) for line in lines))


def blocks(log: Log) -> Iterator[bytes]:
    """Yield whole lines in blocks of about 256 KiB; a line longer than that is cut."""
    waiting: list[bytes] = []
    size = 0
    for piece in _text(log) if log.checked else _plain(log.pieces, log.name, log.warn):
        waiting.append(piece)
        size += len(piece)
        if size >= BLOCK:
            whole, rest = _split(b"".join(waiting))
            yield _clean(whole)
            waiting, size = [rest], len(rest)
    if size:
        last = b"".join(waiting)
        yield _clean(last if last.endswith(b"\n") else last + b"\n")


def _text(log: Log) -> Iterator[bytes]:
    """Yield the bytes of a log; raise InvalidDocumentError if there are none, or if they are no text."""
    empty = True
    for piece in _plain(_not_empty(log), log.name, log.warn):
        if empty and len(piece.translate(None, _TEXT)) > len(piece) * MOST_CONTROLS:
            raise InvalidDocumentError(f"{log.name}: this is no text", remedy="give the log itself, plain or gzip")
        empty = empty and not piece
        yield piece
    if empty:
        raise InvalidDocumentError(
            f"{log.name}: a damaged gzip file: nothing can be unpacked", remedy="give the log itself, plain or gzip"
        )


def _not_empty(log: Log) -> Iterator[bytes]:
    piece = next(log.pieces, b"")
    if not piece:
        raise InvalidDocumentError(f"{log.name}: empty: there is nothing to diagnose", remedy="was the log kept?")
    yield piece
    yield from log.pieces


def _split(data: bytes) -> tuple[bytes, bytes]:
    """Part the whole lines from the beginning of the next one; one endless line is taken as it is."""
    end = data.rfind(b"\n") + 1
    return (data[:end], data[end:]) if end else (data, b"")


def _pieces(stream: Readable) -> Iterator[bytes]:
    try:
        while piece := stream.read(BLOCK):
            yield piece
    finally:
        if isinstance(stream, io.BufferedReader) and stream is not sys.stdin.buffer:
            stream.close()


def _plain(pieces: Iterator[bytes], name: str, tell: Callable[[str], None]) -> Iterator[bytes]:
    """Unpack gzip, recognised by its first bytes; a torn or damaged tail ends the log there, and is warned of."""
    first = b""
    while len(first) < len(_GZIP) and (piece := next(pieces, None)) is not None:
        first += piece
    if first[:2] != _GZIP:
        yield first
        yield from pieces
        return
    if not (yield from _gunzip(itertools.chain([first], pieces))):
        tell(f"{name}: the gzip file is cut off or damaged: only what comes before that is read")


def _gunzip(pieces: Iterator[bytes]) -> Generator[bytes, None, bool]:
    """Yield what is packed, and return whether that was everything."""
    unpacker, begun = isal_zlib.decompressobj(wbits=_GZIP_WINDOW), False
    for piece in pieces:
        rest, data = piece, b""
        while rest or len(data) == BLOCK:
            try:
                begun, data = True, unpacker.decompress(rest, BLOCK)
            except isal_zlib.error:  # type: ignore[misc]  # the stub does not say that it is an exception
                return False
            yield data
            rest = unpacker.unconsumed_tail
            if unpacker.eof:  # another member may follow, or zeros that fill a block
                rest, begun = unpacker.unused_data.lstrip(b"\0"), False
                unpacker = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
    return not begun


def _clean(block: bytes) -> bytes:
    """Drop escape sequences and the carriage returns of line ends."""
    if b"\x1b" in block:
        block = _ESCAPE.sub(b"", block)
    return block.replace(b"\r\n", b"\n") if b"\r\n" in block else block


def _line_bytes(line: str | bytes) -> bytes:
    raw = line.encode("utf-8", "replace") if isinstance(line, str) else line
    return raw if raw.endswith(b"\n") else raw + b"\n"
