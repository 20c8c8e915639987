"""One blob out of a repository into the store: goes on after a broken connection, kept only if its sha256 is right."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.errors import ResolveError
from builder.registry.faults import DamagedError, TransientError
from builder.registry.transport import Request

if TYPE_CHECKING:
    from pathlib import Path

    from builder.registry.connection import Answer
    from builder.registry.content import Descriptor
    from builder.registry.reference import Repository
    from builder.registry.transport import Transport
    from builder.registry.watch import Watch
    from builder.store import Store

_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")  # RFC 9110, 14.4


def download_blob(transport: Transport, repository: Repository, blob: Descriptor, store: Store, watch: Watch) -> Path:
    """Bring a blob into the store and return where it is; a second process that wants it waits and finds it there."""
    with store.exclusive(f"download-{blob.sha256}"):
        if not store.has(blob.sha256):
            _complete(transport, repository, blob, store, watch)
    watch.at(blob.size)
    return store.path(blob.sha256)


def _complete(transport: Transport, repository: Repository, blob: Descriptor, store: Store, watch: Watch) -> None:
    part = store.root / "tmp" / f"part-{blob.sha256}"
    resumed = part.exists()
    action = f"give the blob {blob.digest} of {repository.name}"
    request = Request(
        repository=repository, action=action, path=f"blobs/{blob.digest}", accept=frozenset({200, 206, 416})
    )
    transport.persist(lambda: _continue(transport, request, blob, part, watch), request, watch)
    try:
        store.add(part, blob.sha256)
    except ResolveError as error:
        if not resumed:
            raise DamagedError(
                f"{repository.registry} sent other bytes than {blob.digest} of {repository.name}",
                evidence=(error.message,),
            ) from error
        _complete(transport, repository, blob, store, watch)


def _continue(transport: Transport, request: Request, blob: Descriptor, part: Path, watch: Watch) -> None:
    offset = part.stat().st_size if part.exists() else 0
    if offset == blob.size and part.exists():
        return
    if offset > blob.size:
        part.unlink()
        offset = 0
    with transport.exchange(ranged(request, offset)) as answer:
        if answer.status == 416:
            part.unlink(missing_ok=True)
            raise TransientError("the registry cannot continue the blob")
        start = start_of(answer)
        if start not in {0, offset}:
            raise TransientError(f"the registry continued at byte {start} instead of {offset}")
        _write(answer, part, start, blob.size, watch)


def _write(answer: Answer, part: Path, start: int, size: int, watch: Watch) -> None:
    position = start
    with part.open("ab") as file:
        file.truncate(start)
        for piece in answer.pieces:
            file.write(piece)
            position += len(piece)
            watch.at(position)
            if position > size:
                break
    if position > size:
        part.unlink()
        raise TransientError(f"more than the {size} bytes of the blob came")
    if position < size:
        raise TransientError(f"{position} of {size} bytes came")


def ranged(request: Request, offset: int) -> Request:
    """Return the same request for the bytes from `offset` on."""
    if not offset:
        return request
    return Request(
        repository=request.repository,
        action=request.action,
        path=request.path,
        accept=request.accept,
        headers={"Range": f"bytes={offset}-"},
    )


def start_of(answer: Answer) -> int:
    """Return the position of the first byte of an answer, -1 if it does not say it."""
    if answer.status != 206:
        return 0
    found = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
    return int(found[1]) if found else -1
