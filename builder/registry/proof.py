"""A blob of a repository read to its last byte and proven by its digest, without a copy on the disk."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from builder.registry.download import ranged, start_of
from builder.registry.faults import DamagedError, TransientError
from builder.registry.transport import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.registry.connection import Answer
    from builder.registry.content import Descriptor
    from builder.registry.reference import Repository
    from builder.registry.transport import Transport
    from builder.registry.watch import Watch


class BlobReader:
    """Reads one blob; a broken connection is continued. `run` does it, and may be called once."""

    def __init__(
        self,
        transport: Transport,
        repository: Repository,
        blob: Descriptor,
        watch: Watch,
        on_piece: Callable[[bytes], object] = lambda _: None,
    ) -> None:
        self._transport = transport
        self._repository = repository
        self._blob = blob
        self._watch = watch
        self._on_piece = on_piece
        self._seen = hashlib.sha256()
        self._offset = 0

    def run(self) -> None:
        """Read the blob; raises RegistryError, DamagedError if these are not the bytes of its digest."""
        request = Request(
            repository=self._repository,
            action=f"give the blob {self._blob.digest} of {self._repository.name}",
            path=f"blobs/{self._blob.digest}",
            accept=frozenset({200, 206}),
        )
        self._transport.persist(lambda: self._continue(request), request, self._watch)
        if f"sha256:{self._seen.hexdigest()}" != self._blob.digest:
            raise DamagedError(
                f"{self._repository.registry} sent other bytes than {self._blob.digest} of {self._repository.name}"
            )

    def _continue(self, request: Request) -> None:
        if self._offset == self._blob.size and self._offset:
            return
        with self._transport.exchange(ranged(request, self._offset)) as answer:
            self._skip(answer)
            for piece in answer.pieces:
                self._take(piece)
        if self._offset < self._blob.size:
            raise TransientError(f"{self._offset} of {self._blob.size} bytes came")

    def _skip(self, answer: Answer) -> None:
        """Pass over what came before the break, where the registry begins the blob again."""
        start = start_of(answer)
        if start not in {0, self._offset}:
            raise TransientError(f"the registry continued at byte {start} instead of {self._offset}")
        left = self._offset - start
        while left > 0:
            piece = next(answer.pieces, b"")
            if not piece:
                raise TransientError("the answer ended before where the last one broke")
            if len(piece) > left:
                self._take(piece[left:])
            left -= len(piece)

    def _take(self, piece: bytes) -> None:
        self._offset += len(piece)
        if self._offset > self._blob.size:
            raise DamagedError(
                f"{self._repository.registry} sent more than the {self._blob.size} bytes of {self._blob.digest}"
            )
        self._seen.update(piece)
        self._on_piece(piece)
        self._watch.at(self._offset)
