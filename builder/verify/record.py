"""The verdict on disk, and what the store knows of it: written whole, read strictly, believed where it was made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.document import Document, canonical_json, pretty_json, sha256_bytes, sha256_file, write_atomic
from builder.errors import InvalidDocumentError, NotVerifiedError
from builder.verify.grounds import grounds_in
from builder.verify.verdict import Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from builder.store import Store

KIND = "verdict"


class Proof(Document):
    """What the store records of a proof that ran on this machine.

    `file` is the sha256 of the `verdict.json` that it wrote, or found to say the same. `lock_digest` keeps the record
    as long as that lock is there.
    """

    verdict: Verdict
    file: str
    lock_digest: str


def read_verdict(path: Path) -> Verdict | None:
    """Return the verdict in a file, or None where there is none; a damaged file is an InvalidDocumentError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return Verdict.from_json(data, source=str(path))


def find_proof(key: str, store: Store) -> Proof | None:
    """Return what is recorded of a proof, by the key of its grounds."""
    record = store.result(KIND, key)
    try:
        return None if record is None else Proof.from_json(canonical_json(record), source=f"{KIND} {key}")
    except InvalidDocumentError:
        return None


def keep_proof(verdict: Verdict, path: Path, store: Store) -> None:
    """Record a verdict that was seen on this machine, and write it into its file.

    A file that says the same of the same image on another day stays as it is.
    """
    old = _same_proof(path, verdict)
    data = old or pretty_json(verdict.to_plain())
    proof = Proof(verdict=verdict, file=sha256_bytes(data), lock_digest=verdict.lock_digest)
    store.keep_result(KIND, _key_of(verdict), proof.to_plain())
    if old is None:
        write_atomic(path, data)


def recorded_verdict(verdict: Verdict, path: Path, store: Store, *, remedy: str) -> Verdict:
    """Return the verdict that this machine has seen, where its file `path` holds it; raise NotVerifiedError."""
    proof = find_proof(_key_of(verdict), store)
    if proof is None:
        raise NotVerifiedError(f"{path}: this verdict was not made on this machine", remedy=remedy)
    if sha256_file(path) != proof.file:
        raise NotVerifiedError(f"{path}: the file was changed after its verdict was made", remedy=remedy)
    return proof.verdict


def _key_of(verdict: Verdict) -> str:
    return grounds_in(verdict).proof_key(verdict.waived)


def _same_proof(path: Path, verdict: Verdict) -> bytes | None:
    """Return the bytes of a file that says the same as a verdict."""
    try:
        data = path.read_bytes()
        old = Verdict.from_json(data, source=str(path))
    except (OSError, InvalidDocumentError):
        return None
    return data if _timeless(old) == _timeless(verdict) else None


def _timeless(verdict: Verdict) -> Verdict:
    checks = tuple(check.model_copy(update={"figures": {}, "log": None}) for check in verdict.checks)
    return verdict.model_copy(update={"finished": "", "engine": {}, "checks": checks})
