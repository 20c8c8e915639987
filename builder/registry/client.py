"""What the rest of the project asks of a registry: manifests, blobs and tags, in values; every digest is proven."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urljoin

from builder.download import DEFAULT_PATIENCE
from builder.errors import RegistryError
from builder.registry.content import MANIFEST_TYPES, Descriptor, Manifest, Payload, digest_of, is_digest
from builder.registry.download import download_blob
from builder.registry.faults import DamagedError
from builder.registry.proof import BlobReader
from builder.registry.transport import Request, Transport
from builder.registry.upload import Upload
from builder.registry.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from builder.download import Patience
    from builder.registry.connection import Answer
    from builder.registry.reference import Reference, Repository
    from builder.settings import Settings
    from builder.store import Store

_FOUND_OR_NOT = frozenset({200, 404})
_UNSEEN = frozenset({"MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN"})  # of what a manifest names
_DIGEST_HEADER = "Docker-Content-Digest"
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="?next\b')  # RFC 8288


class RegistryClient:
    """A client of any number of registries; threads may share it. Every method may raise RegistryError."""

    def __init__(self, settings: Settings, *, patience: Patience = DEFAULT_PATIENCE) -> None:
        self.patience = patience
        self._transport = Transport(settings, patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.close()

    def find(self, reference: Reference) -> Descriptor | None:
        """Return how the registry describes a manifest, or None if it has none under that tag or digest."""
        request = self._manifest_request(reference, "HEAD", "name", _FOUND_OR_NOT)
        answer, _ = self._transport.ask(request)
        if answer.status == 404:
            return None
        digest, size = answer.headers.get(_DIGEST_HEADER, ""), answer.headers.get("Content-Length", "")
        if not is_digest(digest) or not size.isdigit():
            found = self.find_manifest(reference)
            return found.descriptor if found else None
        _check_digest(reference, digest)
        return Descriptor(media_type=_media_type(answer), digest=digest, size=int(size))

    def find_manifest(self, reference: Reference) -> Manifest | None:
        """Return a manifest or an index, or None if the registry has none under that tag or digest."""
        answer, data = self._transport.ask(self._manifest_request(reference, "GET", "give", _FOUND_OR_NOT))
        if answer.status == 404:
            return None
        digest = digest_of(data)
        announced = answer.headers.get(_DIGEST_HEADER, digest)
        if digest != announced:
            raise DamagedError(
                f"{reference.repository.registry} calls the manifest of {reference} {announced}, but it is {digest}"
            )
        _check_digest(reference, digest)
        return Manifest(media_type=_media_type(answer), data=data, source=str(reference.with_digest(digest)))

    def manifest(self, reference: Reference) -> Manifest:
        """Return a manifest or an index that must be there."""
        found = self.find_manifest(reference)
        if found is None:
            raise RegistryError(
                f"{reference.repository.registry} has no {reference}", remedy="check the name, the tag and the digest"
            )
        return found

    def put_manifest(
        self, reference: Reference, data: bytes, media_type: str, *, payloads: Sequence[Payload] = ()
    ) -> bool:
        """Store a manifest under its tag or digest; say whether the registry took note of the subject in it.

        A registry may not see a blob for the moment in which somebody else pushes the same one. So a manifest that is
        refused for what it names is tried again, after those of `payloads` that the registry lacks by then are pushed.
        """
        _check_digest(reference, digest_of(data))
        request = Request(
            repository=reference.repository,
            action=f"take the manifest of {reference}",
            path=f"manifests/{reference.tag or reference.identifier}",
            method="PUT",
            accept=frozenset({201}),
            headers={"Content-Type": media_type},
            body=data,
            writes=True,
            again=_UNSEEN,
        )
        refused = False

        def attempt() -> Answer:
            nonlocal refused
            for payload in payloads if refused else ():
                self.push_blob(reference.repository, payload)
            refused = True
            with self._transport.exchange(request) as answer:
                answer.body()
                return answer

        answer = self._transport.persist(attempt, request)
        stored = answer.headers.get(_DIGEST_HEADER, digest_of(data))
        if stored != digest_of(data):
            raise RegistryError(
                f"{reference.repository.registry} stored the manifest of {reference} as {stored}, "
                f"but it is {digest_of(data)}",
                remedy="something between changes what is pushed: use another way to the registry",
            )
        return "OCI-Subject" in answer.headers

    def push_blob(
        self,
        repository: Repository,
        payload: Payload,
        *,
        sources: Sequence[Repository] = (),
        watch: Watch | None = None,
    ) -> int:
        """Bring a blob into a repository and return the bytes that travelled, 0 if it was there or could be mounted.

        `sources` are repositories of the same registry that may have the blob.
        """
        return Upload(self._transport, repository, payload, watch or Watch()).run(sources)

    def mount_blob(self, repository: Repository, blob: Descriptor, sources: Sequence[Repository]) -> bool:
        """Say whether a repository has a blob, or has it now from one of `sources` of the same registry."""
        absent = Payload(digest=blob.digest, size=blob.size, source=b"")
        return Upload(self._transport, repository, absent, Watch()).is_spared(sources)

    def fetch_blob(self, repository: Repository, blob: Descriptor, store: Store, *, watch: Watch | None = None) -> Path:
        """Bring a blob into the store and return where it is; what an interrupted download left is continued."""
        return download_blob(self._transport, repository, blob, store, watch or Watch())

    def read_blob(self, repository: Repository, blob: Descriptor) -> bytes:
        """Return a small blob, its digest proven; nothing is kept."""
        pieces: list[bytes] = []
        BlobReader(self._transport, repository, blob, Watch(), pieces.append).run()
        return b"".join(pieces)

    def prove_blob(self, repository: Repository, blob: Descriptor, *, watch: Watch | None = None) -> None:
        """Read every byte of a blob and prove its digest; nothing is kept."""
        BlobReader(self._transport, repository, blob, watch or Watch()).run()

    def tags(self, repository: Repository) -> tuple[str, ...]:
        """Return all tags of a repository, none if the registry does not know it."""
        found: list[str] = []
        for page in self.listing(repository, "tags/list", f"list the tags of {repository.name}"):
            found += [str(tag) for tag in page.get("tags") or ()]
        return tuple(found)

    def listing(self, repository: Repository, path: str, action: str) -> Iterator[dict[str, Any]]:
        """Yield the pages of a listing, none where the registry has no such listing."""
        while path:
            request = Request(repository=repository, action=action, path=path, accept=_FOUND_OR_NOT)
            answer, body = self._transport.ask(request)
            if answer.status == 404:
                return
            try:
                page = json.loads(body)
            except ValueError:
                page = None
            if not isinstance(page, dict):
                raise RegistryError(f"{repository.registry} did not {action}: the answer is no JSON object")
            yield page
            following = _NEXT.search(answer.headers.get("Link", ""))
            path = urljoin(answer.url, following[1]) if following else ""

    def _manifest_request(self, reference: Reference, method: str, verb: str, accept: frozenset[int]) -> Request:
        return Request(
            repository=reference.repository,
            action=f"{verb} the manifest of {reference}",
            path=f"manifests/{reference.identifier}",
            method=method,
            accept=accept,
            headers={"Accept": ", ".join(MANIFEST_TYPES)},
        )


def _media_type(answer: Answer) -> str:
    return answer.headers.get("Content-Type", "").partition(";")[0].strip()


def _check_digest(reference: Reference, digest: str) -> None:
    if reference.digest not in {None, digest}:
        raise DamagedError(f"{reference.repository.registry} has another manifest than {reference}: {digest}")
