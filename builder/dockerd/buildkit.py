"""What BuildKit says while it builds: its protobuf trace decoded, and the steps and log lines in it.

The trace is the message `StatusResponse` of BuildKit's `api/services/control/control.proto`: field 1 the vertexes
(1 digest, 3 name, 4 cached, 5 started, 6 completed, 7 error), field 3 the logs (1 vertex, 4 message).
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.dockerd.capture import Lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EVIDENCE_LINES = 20

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_CANCELLED = "context canceled"
_EXIT_CODE = re.compile(r"exit code: (\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Vertex:
    """A step of the build graph as BuildKit last saw it; `error` is empty unless it failed."""

    digest: str
    name: str
    cached: bool = False
    started: bool = False
    completed: bool = False
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogPiece:
    """Bytes that a step wrote, in pieces that need not end at a line."""

    vertex: str
    data: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """One message of the trace."""

    vertexes: tuple[Vertex, ...]
    logs: tuple[LogPiece, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedStep:
    """The step that ended a build: its name, its last lines, the exit code of its program where it ran one."""

    name: str
    error: str
    lines: tuple[str, ...]

    @property
    def exit_code(self) -> int | None:
        """The exit code that BuildKit names in its error (128 + n: ended by signal n)."""
        found = _EXIT_CODE.search(self.error)
        return int(found[1]) if found else None


def decode_trace(data: bytes) -> Trace:
    """Decode one trace message; raise ValueError if it is not one."""
    parts = list(_fields(data))
    return Trace(
        vertexes=tuple(_vertex(value) for number, value in parts if number == 1 and isinstance(value, bytes)),
        logs=tuple(_log(value) for number, value in parts if number == 3 and isinstance(value, bytes)),
    )


def _vertex(data: bytes) -> Vertex:
    values = dict(_fields(data))
    return Vertex(
        digest=_text(values.get(1)),
        name=_text(values.get(3)),
        cached=bool(values.get(4)),
        started=5 in values,
        completed=6 in values,
        error=_text(values.get(7)),
    )


def _log(data: bytes) -> LogPiece:
    values = dict(_fields(data))
    message = values.get(4, b"")
    return LogPiece(vertex=_text(values.get(1)), data=message if isinstance(message, bytes) else b"")


def _text(value: int | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of a protobuf message: integers as numbers, everything of fixed size as bytes."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if kind == _BYTES:
            size, position = _varint(data, position)
        elif kind in {_FIXED64, _FIXED32}:
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"protobuf wire type {kind} is not used by BuildKit")
        if position + size > len(data):
            raise ValueError("the trace message is cut short")
        yield number, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("the trace message is cut short")


@dataclass(slots=True)
class _Step:
    vertex: Vertex
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=EVIDENCE_LINES))
    splitter: Lines | None = None
    announced: bool = False


class BuildLog:
    """Follows a build: announces each step once and hands on its lines, and knows the step that failed."""

    def __init__(self, on_line: Callable[[str], None] | None = None) -> None:
        self._on_line = on_line or (lambda _line: None)
        self._steps: dict[str, _Step] = {}

    def see(self, trace: Trace) -> None:
        """Take the next message of the trace."""
        for vertex in trace.vertexes:
            self._see_vertex(vertex)
        for piece in trace.logs:
            self._see_log(piece)

    def failed(self) -> FailedStep | None:
        """Return the step that failed; steps that were only cancelled with it do not count."""
        for step in self._steps.values():
            error = step.vertex.error
            if error and _CANCELLED not in error:
                if step.splitter is not None:
                    step.splitter.close()
                return FailedStep(name=step.vertex.name, error=error, lines=tuple(step.lines))
        return None

    def _see_vertex(self, vertex: Vertex) -> None:
        step = self._steps.setdefault(vertex.digest, _Step(vertex))
        step.vertex = vertex
        if not step.announced and (vertex.started or vertex.cached) and not vertex.name.startswith("[internal]"):
            step.announced = True
            self._on_line(f"{vertex.name} (cached)" if vertex.cached else vertex.name)
        if vertex.completed and step.splitter is not None:
            step.splitter.close()

    def _see_log(self, piece: LogPiece) -> None:
        step = self._steps.setdefault(piece.vertex, _Step(Vertex(digest=piece.vertex, name="")))
        if step.splitter is None:
            step.splitter = Lines(lambda line: self._line(step, line))
        step.splitter.feed(piece.data)

    def _line(self, step: _Step, line: str) -> None:
        step.lines.append(line)
        self._on_line(line)
