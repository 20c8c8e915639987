"""One blob into a repository: mounted, in one request, or in chunks that go on where a broken connection left them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.errors import RegistryError
from builder.registry.connection import Slice
from builder.registry.content import OCTETS
from builder.registry.faults import TransientError, reason_of
from builder.registry.transport import Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.registry.connection import Answer
    from builder.registry.content import Payload
    from builder.registry.reference import Repository
    from builder.registry.transport import Transport
    from builder.registry.watch import Watch

MONOLITHIC = 4 << 20  # bytes; up to this a blob goes in one request
CHUNK = 64 << 20  # bytes; what a registry may lose of a blob if it keeps nothing of a broken request
_RANGE = re.compile(r"(?:bytes=)?0-(\d+)")
_MOUNT_ANSWERS = frozenset({201, 202, 400, 401, 403, 404, 405})  # a registry may refuse to mount: then the bytes travel
_LOST = frozenset({400, 404, 410, 416})  # what registries answer for an upload that they do not know (any more)


class _LostError(Exception):
    """The registry does not go on with this upload: it must begin again."""


class Upload:
    """Brings one payload into one repository; `run` does it, and may be called once."""

    def __init__(self, transport: Transport, repository: Repository, payload: Payload, watch: Watch) -> None:
        self._transport = transport
        self._repository = repository
        self._payload = payload
        self._watch = watch
        self._action = f"take the blob {payload.digest} of {repository.name}"
        self._opened: Answer | None = None  # what the registry offered instead of mounting the blob
        self._location = ""
        self._offset = 0
        self._chunk = CHUNK

    def run(self, sources: Sequence[Repository] = ()) -> int:
        """Return the bytes that travelled: 0 if the blob was there, or could be mounted from one of `sources`.

        Raises RegistryError; then the repository holds no part of the blob under its digest.
        """
        if self.is_spared(sources):
            self._watch.at(self._payload.size)
            return 0
        self._transport.persist(self._transfer, self._request("PUT", ""), self._watch)
        if not self._is_there():
            raise RegistryError(
                f"{self._repository.registry} took the blob {self._payload.digest} of {self._repository.name}, "
                "but does not have it",
                remedy="look into the registry's log",
            )
        self._watch.at(self._payload.size)
        return self._payload.size

    def is_spared(self, sources: Sequence[Repository]) -> bool:
        """Say whether the blob is in the repository, or is now since it could be mounted from one of `sources`."""
        return self._is_there() or any(self._is_mounted(source) for source in sources)

    def _is_there(self) -> bool:
        path = f"blobs/{self._payload.digest}"
        answer, _ = self._transport.ask(self._request("HEAD", path, accept=frozenset({200, 404})), self._watch)
        if answer.status == 404:
            return False
        size = answer.headers.get("Content-Length", "")
        if size != str(self._payload.size):
            raise RegistryError(
                f"{self._repository.registry} has {self._payload.digest} of {self._repository.name} with {size} bytes, "
                f"it must have {self._payload.size}",
                remedy="the registry's storage is damaged: let its owner remove that blob",
            )
        return True

    def _is_mounted(self, source: Repository) -> bool:
        if source.registry != self._repository.registry or source.name == self._repository.name:
            return False
        path = f"blobs/uploads/?mount={self._payload.digest}&from={source.name}"
        request = self._request("POST", path, accept=_MOUNT_ANSWERS, sources=(source.name,))
        try:
            answer, _ = self._transport.ask(request, self._watch)
        except RegistryError:
            return False  # may not read the source, or does not mount: the transfer says what else is wrong
        self._opened = answer if answer.status == 202 else None
        return answer.status == 201

    def _transfer(self) -> None:
        """Send the whole blob in an upload of its own; raises TransientError if that has to begin again."""
        self._begin()
        try:
            if self._payload.size > MONOLITHIC:
                while self._offset < self._payload.size:
                    self._advance()
            self._finish()
        except _LostError as error:
            if "DIGEST_INVALID" in str(error) and not self._payload.is_intact():
                raise RegistryError(
                    f"the bytes of {self._payload.digest} are not those of its name any more",
                    remedy="the disk or the store is damaged: remove that file and build again",
                ) from error
            raise TransientError(str(error)) from error

    def _begin(self) -> None:
        request = self._request("POST", "blobs/uploads/", accept=frozenset({202}))
        answer = self._opened or self._transport.ask(request, self._watch)[0]
        self._opened = None
        self._location, self._offset = answer.location, 0
        least = answer.headers.get("OCI-Chunk-Min-Length", "")
        self._chunk = max(CHUNK, int(least) if least.isdigit() else 0)

    def _advance(self) -> None:
        """Send the next chunk; what came of it before a break counts."""
        started, tried = self._offset, False

        def attempt() -> None:
            nonlocal tried
            if tried:
                self._look()
            if self._offset <= started:
                tried = True
                self._send_chunk()

        self._transport.persist(attempt, self._request("PATCH", ""), self._watch)

    def _send_chunk(self) -> None:
        length = min(self._chunk, self._payload.size - self._offset)
        headers = {"Content-Type": OCTETS, "Content-Range": f"{self._offset}-{self._offset + length - 1}"}
        self._exchange("PATCH", self._location, 202, headers, self._slice(length))

    def _look(self) -> None:
        """Ask how much of the blob the registry has."""
        self._exchange("GET", self._location, 204)

    def _finish(self) -> None:
        """Name the blob, with all of its bytes if none were sent."""
        rest = self._payload.size - self._offset
        joint = "&" if "?" in self._location else "?"
        location = f"{self._location}{joint}digest={self._payload.digest}"
        headers = {"Content-Type": OCTETS}
        tried = False

        def attempt() -> None:
            nonlocal tried
            if tried and self._is_there():
                return
            tried = True
            self._exchange("PUT", location, 201, headers, self._slice(rest))

        self._transport.persist(attempt, self._request("PUT", ""), self._watch)

    def _exchange(
        self, method: str, url: str, wanted: int, headers: Mapping[str, str] | None = None, body: Slice | None = None
    ) -> None:
        request = self._request(method, url, accept=_LOST | {wanted, 204}, headers=headers, body=body)
        with self._transport.exchange(request) as answer:
            if answer.status in _LOST:
                raise _LostError(f"HTTP {answer.status} {reason_of(answer.reason, answer.body())}")
            answer.body()
            if method != "PUT":
                self._follow(answer)

    def _follow(self, answer: Answer) -> None:
        """Take from an answer where the upload goes on."""
        found = _RANGE.fullmatch(answer.headers.get("Range", ""))
        if found is None:
            raise _LostError(f"the answer says {answer.headers.get('Range', 'nothing')!r} of what came")
        last = int(found[1])
        self._location, self._offset = answer.location, last + 1 if last else 0  # 0-0 stands for nothing
        if self._offset > self._payload.size:
            raise _LostError(f"the registry has {self._offset} bytes of {self._payload.size}")
        self._watch.at(self._offset)

    def _slice(self, length: int) -> Slice:
        return Slice(payload=self._payload, start=self._offset, length=length, watch=self._watch)

    def _request(
        self,
        method: str,
        path: str,
        *,
        accept: frozenset[int] = frozenset(),
        headers: Mapping[str, str] | None = None,
        body: Slice | None = None,
        sources: tuple[str, ...] = (),
    ) -> Request:
        return Request(
            repository=self._repository,
            action=self._action,
            path=path,
            method=method,
            accept=accept,
            headers=headers or {},
            body=body,
            writes=True,
            sources=sources,
        )
