"""What is wrong with the engine: the cause found in an exception chain, in a sentence with its remedy."""

from __future__ import annotations

import contextlib
import os
import socket
from errno import ENOSPC
from http.client import HTTPException
from typing import TYPE_CHECKING

from docker.errors import APIError, DockerException

from builder.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FULL_DISK_BYTES = 64 << 20
MAKE_ROOM = "make room: `envbuild gc`, `docker image prune`, `docker builder prune`"

_START = "start it: `systemctl start docker`, or `dockerd` as root where there is no systemd"
_LOOK = "see whether it still runs: `docker version`, `journalctl -u docker`"
_BROKEN = "it broke the connection off, as an engine does that stops"
_ADVICE: tuple[tuple[type[Exception], str, str], ...] = (
    (
        FileNotFoundError,
        "no engine runs: its socket does not exist",
        f"{_START}; set DOCKER_HOST if it listens elsewhere",
    ),
    (ConnectionRefusedError, "nothing listens: the engine has stopped and left its address behind", _START),
    (
        PermissionError,
        "this user may not use its socket",
        "join its group and log in again: `sudo usermod -aG docker $USER`; or use sudo",
    ),
    (TimeoutError, "it does not answer in time", "look at `journalctl -u docker`, then `systemctl restart docker`"),
    (socket.gaierror, "its host name is unknown", "correct DOCKER_HOST"),
    (ConnectionError, _BROKEN, _LOOK),
    (HTTPException, _BROKEN, _LOOK),
)


@contextlib.contextmanager
def engine_errors(address: str) -> Iterator[None]:
    """Turn every failure of docker-py and of its transport into an EngineError (requests' errors are OSErrors)."""
    try:
        yield
    except (DockerException, OSError) as error:
        raise engine_fault(error, address) from error


def engine_fault(error: BaseException, address: str) -> EngineError:
    """Return the cause as an EngineError; docker-py buries it in the arguments and contexts of its own exceptions."""
    if isinstance(error, APIError):
        full = out_of_disk(said(error), None)
        return EngineError(f"the engine at {address} refused: {said(error)}", remedy=MAKE_ROOM if full else None)
    chain = tuple(_chain(error))
    for kind, cause, remedy in _ADVICE:
        if any(isinstance(link, kind) for link in chain):
            return EngineError(f"the engine at {address} cannot be used: {cause}", remedy=remedy)
    return EngineError(f"the engine at {address} cannot be used: {error}", remedy=_LOOK)


def said(error: APIError) -> str:
    """Return the engine's own words in an answer that is an error."""
    return str(error.explanation or error).strip()


def disk_free(path: Path) -> int | None:
    """Return the bytes that are free on the file system of `path`, or None where it is not seen from here."""
    try:
        facts = os.statvfs(path)
    except OSError:
        return None
    return facts.f_bavail * facts.f_frsize


def out_of_disk(message: str, free: int | None) -> bool:
    """Say whether a failure was a full disk: the kernel's own words in the message, or nothing left now."""
    return os.strerror(ENOSPC).lower() in message.lower() or (free is not None and free < FULL_DISK_BYTES)


def _chain(error: BaseException) -> Iterator[BaseException]:
    pending, seen = [error], set[int]()
    while pending:
        link = pending.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        arguments = [part for arg in link.args for part in (arg if isinstance(arg, tuple) else (arg,))]
        pending += [part for part in (*arguments, link.__context__) if isinstance(part, BaseException)]
