"""What is needed of the store, written down there: projects that built, jobs that a lock needed, locks published."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builder.document import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from builder.store import Store

WORKSPACE = "workspace"
USE = "use"
PUBLISHED = "published"


def remember_workspace(root: Path, store: Store) -> None:
    """Note that the locks of a project folder need what they name in the store."""
    key = key_of(str(root))
    if store.result(WORKSPACE, key) is None:
        store.keep_result(WORKSPACE, key, {"root": str(root)})


def known_workspaces(store: Store) -> Iterator[tuple[str, Path]]:
    """Yield the key and the root of every project folder that was remembered, also of those that are gone."""
    for kind, key in store.results():
        record = store.result(kind, key) if kind == WORKSPACE else None
        if record is not None:
            yield key, Path(record["root"])


def note_use(lock_digest: str, keys: Iterable[str], store: Store, *, more: bool = False) -> None:
    """Note the keys of the jobs that a lock needs, instead of those noted before or, with `more`, besides them."""
    noted = (store.result(USE, lock_digest) or {}).get("keys", [])
    wanted = sorted({*keys, *(noted if more else ())})
    if wanted != noted:
        store.keep_result(USE, lock_digest, {"keys": wanted})


def note_published(image_digest: str, lock_digest: str, store: Store) -> None:
    """Note that an image of a lock is in a registry, so that what the lock needs stays after the lock has moved on."""
    store.keep_result(PUBLISHED, image_digest.removeprefix("sha256:"), {"lock": lock_digest})


def published_locks(store: Store) -> Iterator[str]:
    """Yield the digest of every lock of which an image was published."""
    for kind, key in store.results():
        record = store.result(kind, key) if kind == PUBLISHED else None
        if record is not None:
            yield str(record["lock"])
