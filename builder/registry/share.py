"""Finished work shared between machines: a result of the store and its file as an artifact of the user's registry.

The tag is the job's key, the manifest names every byte by its sha256. Whoever may push to that repository is trusted.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from builder.document import canonical_json
from builder.download import Patience
from builder.errors import RegistryError
from builder.registry.client import RegistryClient
from builder.registry.content import OCI_MANIFEST, OCTETS, Descriptor, Payload
from builder.registry.faults import DamagedError
from builder.registry.reference import parse_repository
from builder.registry.transfer import fetch, push

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from builder.registry.content import Manifest
    from builder.registry.reference import Repository
    from builder.settings import Settings
    from builder.store import Store

RESULT_TYPE = "application/vnd.envbuild.result.v1+json"
PATIENCE = Patience(attempts=2)  # for what can be built here as well


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared:
    """A kind of result that is shared: the types of its fields, and the field with the sha256 of its one file."""

    kind: str
    fields: Mapping[str, type]
    file: str

    def sha256(self, record: Mapping[str, Any]) -> str:
        """Return the sha256 of the result's file."""
        return str(record[self.file]).removeprefix("sha256:")


class Sharing(Protocol):
    """Where the results of jobs are shared."""

    def fetch_results(self, shared: Shared, keys: Iterable[str]) -> None:
        """Bring the results with these keys into the store, as far as they are shared."""

    def share_results(self, shared: Shared, keys: Iterable[str]) -> None:
        """Push the results with these keys, if the user wants that and nobody did it before."""


class NoShare:
    """What a machine has whose user shares nothing."""

    def fetch_results(self, shared: Shared, keys: Iterable[str]) -> None:
        """Do nothing."""

    def share_results(self, shared: Shared, keys: Iterable[str]) -> None:
        """Do nothing."""


NO_SHARE = NoShare()


class Share:
    """A repository with the results of many machines. If it fails, that costs a warning and not the build."""

    def __init__(
        self, repository: Repository, client: RegistryClient, store: Store, *, writes: bool, warn: Callable[[str], None]
    ) -> None:
        self._repository = repository
        self._client = client
        self._store = store
        self._writes = writes
        self._warn = warn
        self._lock = threading.Lock()
        self._is_up = True
        self._damaged: set[str] = set()

    def fetch_results(self, shared: Shared, keys: Iterable[str]) -> None:
        """Bring the results with these keys into the store, as far as they are shared."""
        self._each(partial(self._fetch, shared), keys)

    def share_results(self, shared: Shared, keys: Iterable[str]) -> None:
        """Push the results with these keys, if the user wants that and nobody did it before."""
        if self._writes:
            self._each(partial(self._push, shared), keys)

    def _each(self, work: Callable[[str], None], keys: Iterable[str]) -> None:
        with ThreadPoolExecutor(self._client.patience.parallel) as pool:
            list(pool.map(partial(self._try, work), keys))

    def _try(self, work: Callable[[str], None], key: str) -> None:
        if not self._is_up:
            return
        try:
            work(key)
        except DamagedError as error:
            self._damaged.add(key)
            self._warn(f"{error.message}: it is made again here")
        except RegistryError as error:
            with self._lock:
                if self._is_up:
                    self._warn(f"nothing more is shared through {self._repository}: {error.message}")
                self._is_up = False

    def _fetch(self, shared: Shared, key: str) -> None:
        manifest = self._client.find_manifest(self._repository.at(_tag(shared, key)))
        if manifest is None:
            return
        self._store.keep_result(shared.kind, key, self._record(shared, key, manifest))

    def _record(self, shared: Shared, key: str, manifest: Manifest) -> dict[str, Any]:
        """Bring the file of a result into the store and return the record that names it."""
        if manifest.plain.get("artifactType") != RESULT_TYPE:
            raise DamagedError(f"{manifest.source} is no shared result")
        fetch(self._client, self._repository, [manifest.config], self._store)
        record = _record_from(self._store.path(manifest.config.sha256).read_bytes(), shared, key, manifest.source)
        files = [file for file in manifest.layers if file.sha256 == shared.sha256(record)]
        if not files:
            raise DamagedError(f"{manifest.source} does not hold the file of its result")
        fetch(self._client, self._repository, files, self._store)
        return record

    def _push(self, shared: Shared, key: str) -> None:
        reference = self._repository.at(_tag(shared, key))
        record = self._store.result(shared.kind, key)
        if record is None or not self._store.has(shared.sha256(record)):
            return
        if key not in self._damaged and self._client.find(reference) is not None:
            return
        note = Payload.of(canonical_json({"kind": shared.kind, "key": key, "record": record}))
        path = self._store.path(shared.sha256(record))
        file = Payload(digest=f"sha256:{path.name}", size=path.stat().st_size, source=path)
        push(self._client, reference, _manifest(note, file), OCI_MANIFEST, [note, file])


def open_share(settings: Settings, store: Store, warn: Callable[[str], None]) -> Sharing:
    """Return where the user's settings share results; raises UsageError if they name no repository."""
    if settings.share is None:
        return NO_SHARE
    repository = parse_repository(settings.share)
    client = RegistryClient(settings, patience=PATIENCE)
    return Share(repository, client, store, writes=settings.share_push, warn=warn)


def _tag(shared: Shared, key: str) -> str:
    return f"{shared.kind}-{key}"


def _manifest(note: Payload, file: Payload) -> bytes:
    config = Descriptor(media_type=RESULT_TYPE, digest=note.digest, size=note.size)
    content = Descriptor(media_type=OCTETS, digest=file.digest, size=file.size)
    return canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "artifactType": RESULT_TYPE,
            "config": config.to_plain(),
            "layers": [content.to_plain()],
        }
    )


def _record_from(data: bytes, shared: Shared, key: str, source: str) -> dict[str, Any]:
    """Return the record of a result that may come from anywhere; raises DamagedError if it is not one of this kind."""
    try:
        note = json.loads(data)
        record = note["record"]
        well = (note["kind"], note["key"]) == (shared.kind, key) and record.keys() == shared.fields.keys()
        well = well and all(type(record[name]) is wanted for name, wanted in shared.fields.items())
        well = well and not any("/" in text for text in record.values() if isinstance(text, str))
    except (ValueError, KeyError, TypeError, AttributeError):
        well = False
    if not well:
        raise DamagedError(f"{source} is not the result {shared.kind}-{key}")
    return dict(record)
