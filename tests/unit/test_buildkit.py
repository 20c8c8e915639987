"""BuildKit's trace decoded: from hand-made messages, and from what an engine said of a build that failed."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from builder.dockerd.buildkit import BuildLog, LogPiece, Trace, Vertex, decode_trace
from builder.dockerd.stream import error_in

CASE = Path(__file__).parents[1] / "cases" / "buildkit" / "failed-step.jsonl"


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def vertex(**values: bytes | int) -> bytes:
    numbers = {"digest": 1, "inputs": 2, "name": 3, "cached": 4, "started": 5, "completed": 6, "error": 7}
    return field(1, b"".join(field(numbers[name], value) for name, value in values.items()))


def log(digest: bytes, text: bytes) -> bytes:
    return field(3, field(1, digest) + field(2, b"\x08\x01") + field(3, 1) + field(4, text))


def test_every_field_of_a_vertex_is_decoded() -> None:
    name = "[2/3] RUN echo é".encode() + b"x" * 300
    data = vertex(digest=b"d1", inputs=b"d0", name=name, cached=1, started=b"\x08\x05", completed=b"", error=b"bad")
    assert decode_trace(data).vertexes == (
        Vertex(digest="d1", name=name.decode(), cached=True, started=True, completed=True, error="bad"),
    )


def test_fields_that_are_absent_have_their_zero_values() -> None:
    assert decode_trace(vertex(digest=b"d", name=b"n")).vertexes == (Vertex(digest="d", name="n"),)


def test_logs_and_fields_of_other_kinds_are_told_apart() -> None:
    status = field(2, field(1, b"id") + field(4, 1 << 40))
    fixed = varint(9 << 3 | 1) + bytes(8) + varint(10 << 3 | 5) + bytes(4)
    trace = decode_trace(status + log(b"d", b"one\n") + fixed + log(b"d", b"\xff"))
    assert trace == Trace(vertexes=(), logs=(LogPiece(vertex="d", data=b"one\n"), LogPiece(vertex="d", data=b"\xff")))


@pytest.mark.parametrize("cut", [1, 2, 5, -1])
def test_a_message_that_is_cut_short_is_an_error(cut: int) -> None:
    with pytest.raises(ValueError, match="cut short"):
        decode_trace(vertex(digest=b"digest", name=b"name")[:cut])


def test_a_wire_type_that_is_not_in_use_is_an_error() -> None:
    with pytest.raises(ValueError, match="wire type 3"):
        decode_trace(varint(1 << 3 | 3))


def test_a_step_is_announced_once_when_it_starts_and_internal_ones_not_at_all() -> None:
    seen: list[str] = []
    build = BuildLog(seen.append)
    for data in (
        vertex(digest=b"i", name=b"[internal] load build definition", started=b""),
        vertex(digest=b"a", name=b"[1/2] FROM base"),
        vertex(digest=b"a", name=b"[1/2] FROM base", cached=1, started=b"", completed=b""),
        vertex(digest=b"b", name=b"[2/2] RUN make", started=b""),
        vertex(digest=b"b", name=b"[2/2] RUN make", started=b"", completed=b""),
    ):
        build.see(decode_trace(data))
    assert seen == ["[1/2] FROM base (cached)", "[2/2] RUN make"]
    assert build.failed() is None


def test_lines_are_put_together_from_pieces_of_interleaved_steps() -> None:
    seen: list[str] = []
    build = BuildLog(seen.append)
    for data in (
        log(b"a", b"fir"),
        log(b"b", b"other\n"),
        log(b"a", b"st\nsecond"),
        vertex(digest=b"a", completed=b""),
    ):
        build.see(decode_trace(data))
    assert seen == ["other", "first", "second"]


def test_a_step_that_was_only_cancelled_has_not_failed() -> None:
    build = BuildLog()
    build.see(decode_trace(vertex(digest=b"a", name=b"other", started=b"", error=b"context canceled")))
    assert build.failed() is None
    build.see(decode_trace(vertex(digest=b"b", name=b"bad", started=b"", error=b"process ended: exit code: 137")))
    step = build.failed()
    assert step is not None
    assert (step.name, step.exit_code) == ("bad", 137)


def recorded() -> tuple[BuildLog, list[str], str | None]:
    seen: list[str] = []
    build, error = BuildLog(seen.append), None
    for line in CASE.read_text().splitlines():
        message = json.loads(line)
        error = error_in(message) or error
        if message.get("id") == "moby.buildkit.trace":
            build.see(decode_trace(base64.b64decode(message["aux"])))
    return build, seen, error


def test_a_recorded_failure_names_the_step_that_failed_and_not_the_one_cancelled_with_it() -> None:
    build, seen, error = recorded()
    step = build.failed()
    assert step is not None
    assert step.name.startswith("[one 2/2] RUN echo compiling")
    assert step.exit_code == 3
    assert step.lines == ("compiling", "ninja: build stopped")
    assert "other" in seen
    assert error is not None
    assert "exit code: 3" in error
