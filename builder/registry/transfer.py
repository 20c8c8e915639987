"""Whole images and artifacts, many blobs at a time: out, the manifest last, or into the store."""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from builder.download import Progress
from builder.registry.content import digest_of
from builder.registry.faults import StoppedError
from builder.registry.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from builder.registry.client import RegistryClient
    from builder.registry.content import Descriptor, Payload
    from builder.registry.reference import Reference, Repository
    from builder.store import Store

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pushed:
    """What a push did: the digest of the manifest, and the bytes that travelled (of attempts that failed: not counted).

    `subject_known` says whether the registry took note of the manifest's subject.
    """

    digest: str
    sent: int
    subject_known: bool


def push(
    client: RegistryClient,
    reference: Reference,
    manifest: bytes,
    media_type: str,
    payloads: Iterable[Payload],
    *,
    sources: Sequence[Repository] = (),
    on_progress: Callable[[Progress], None] | None = None,
) -> Pushed:
    """Push the blobs that the registry does not have, several at a time, then the manifest.

    A reference without tag and digest gets the manifest under its digest. `sources` are repositories of the same
    registry that may have the blobs. The first failure ends all, is raised as RegistryError, and leaves no manifest.
    """
    wanted = {payload.digest: payload for payload in payloads}
    sizes = {digest: payload.size for digest, payload in wanted.items()}

    def send(digest: str, watch: Watch) -> int:
        return client.push_blob(reference.repository, wanted[digest], sources=sources, watch=watch)

    sent = sum(_in_parallel(send, sizes, client.patience.parallel, on_progress))
    target = reference if reference.tag or reference.digest else reference.with_digest(digest_of(manifest))
    known = client.put_manifest(target, manifest, media_type, payloads=tuple(wanted.values()))
    return Pushed(digest=digest_of(manifest), sent=sent + len(manifest), subject_known=known)


def fetch(
    client: RegistryClient,
    repository: Repository,
    blobs: Iterable[Descriptor],
    store: Store,
    *,
    on_progress: Callable[[Progress], None] | None = None,
) -> None:
    """Bring blobs into the store, several at a time; those that are there cost nothing. Raises RegistryError."""
    wanted = {blob.digest: blob for blob in blobs if not store.has(blob.sha256)}
    sizes = {digest: blob.size for digest, blob in wanted.items()}

    def take(digest: str, watch: Watch) -> None:
        client.fetch_blob(repository, wanted[digest], store, watch=watch)

    _in_parallel(take, sizes, client.patience.parallel, on_progress)


def prove(
    client: RegistryClient,
    repository: Repository,
    blobs: Iterable[Descriptor],
    *,
    on_progress: Callable[[Progress], None] | None = None,
) -> None:
    """Read every byte of blobs, several at a time, and prove their digests; nothing is kept. Raises RegistryError."""
    wanted = {blob.digest: blob for blob in blobs}
    sizes = {digest: blob.size for digest, blob in wanted.items()}

    def look(digest: str, watch: Watch) -> None:
        client.prove_blob(repository, wanted[digest], watch=watch)

    _in_parallel(look, sizes, client.patience.parallel, on_progress)


def _in_parallel(
    work: Callable[[str, Watch], T],
    sizes: dict[str, int],
    parallel: int,
    on_progress: Callable[[Progress], None] | None,
) -> list[T]:
    """Do the work for each digest, the largest first; the first failure stops all others and is raised."""
    stop = threading.Event()
    tally = _Tally(sizes, on_progress)
    order = sorted(sizes, key=lambda digest: (-sizes[digest], digest))

    def job(digest: str) -> T:
        done = work(digest, Watch(on_bytes=lambda position: tally.set(digest, position), stop=stop))
        tally.finish(digest)
        return done

    with ThreadPoolExecutor(parallel) as pool:
        jobs = [pool.submit(job, digest) for digest in order]
        try:
            ended, _ = wait(jobs, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
            for waiting in jobs:
                waiting.cancel()
    for error in (done.exception() for done in jobs if done in ended):
        if error is not None and not isinstance(error, StoppedError):
            raise error
    return [done.result() for done in jobs]


class _Tally:
    """Adds up how far each blob is, and tells the caller, one thread at a time."""

    def __init__(self, sizes: dict[str, int], on_progress: Callable[[Progress], None] | None) -> None:
        self._sizes = sizes
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._done = dict.fromkeys(sizes, 0)
        self._finished: set[str] = set()

    def set(self, digest: str, position: int) -> None:
        """Say how many bytes of a blob are there."""
        with self._lock:
            self._done[digest] = position
            if self._on_progress is not None:
                self._on_progress(
                    Progress(
                        done=sum(self._done.values()),
                        total=sum(self._sizes.values()),
                        files_done=len(self._finished),
                        files_total=len(self._sizes),
                        label=digest[:19],
                    )
                )

    def finish(self, digest: str) -> None:
        """Say that a blob is complete."""
        with self._lock:
            self._finished.add(digest)
        self.set(digest, self._sizes[digest])
