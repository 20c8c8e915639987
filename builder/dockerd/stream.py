"""A body streamed to the engine and its answer read message by message, as it comes."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from builder.dockerd.faults import engine_errors
from builder.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from docker import APIClient


class _Body:
    """The caller's bytes on their way; remembers a failure of the caller's own, which is none of the engine's."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self.error: OSError | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._pieces
        except OSError as error:
            self.error = error
            raise


def exchange(
    client: APIClient, path: str, *, parameters: Mapping[str, str], body: Iterable[bytes], address: str
) -> Generator[dict[str, Any]]:
    """Send a tar stream and yield the engine's JSON messages; a refusal comes as a message with `error`.

    Closing the iterator closes the connection, and with it BuildKit cancels the build. There is no time limit: a
    compile may be silent for hours.
    """
    source = _Body(body)
    try:
        with engine_errors(address):
            response = client.post(
                f"{client.base_url}/v{client.api_version}{path}",
                params=dict(parameters),
                data=source,
                headers={"Content-Type": "application/x-tar"},
                stream=True,
                timeout=None,
            )
    except EngineError:
        if source.error is not None:
            raise source.error from None
        raise
    with contextlib.closing(response):
        lines = response.iter_lines(chunk_size=None)
        while True:
            with engine_errors(address):
                line = next(lines, None)
            if line is None:
                return
            if line.strip():
                yield _message(line, ok=response.ok)


def _message(line: bytes, *, ok: bool) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        value = {"message": line.decode(errors="replace")}
    if not ok:
        return {"error": str(value.get("message", value))}
    return value if isinstance(value, dict) else {}


def error_in(message: Mapping[str, Any]) -> str | None:
    """Return the error that a message carries, if it does."""
    detail = message.get("errorDetail") or {}
    text = detail.get("message") or message.get("error")
    return None if text is None else str(text).strip()
