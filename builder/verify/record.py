"""The verdict on disk: written whole, read strictly, left alone where nothing but the clock has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.document import pretty_json, write_atomic
from builder.errors import InvalidDocumentError
from builder.verify.verdict import Verdict

if TYPE_CHECKING:
    from pathlib import Path


def read_verdict(path: Path) -> Verdict | None:
    """Return the verdict in a file, or None where there is none; a damaged file is an InvalidDocumentError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return Verdict.from_json(data, source=str(path))


def write_verdict(path: Path, verdict: Verdict) -> None:
    """Write a verdict, unless the file already says the same of the same image on another day."""
    if _is_same_proof(path, verdict):
        return
    write_atomic(path, pretty_json(verdict.to_plain()))


def _is_same_proof(path: Path, verdict: Verdict) -> bool:
    try:
        old = Verdict.from_json(path.read_bytes(), source=str(path))
    except (OSError, InvalidDocumentError):
        return False
    return _timeless(old) == _timeless(verdict)


def _timeless(verdict: Verdict) -> Verdict:
    checks = tuple(check.model_copy(update={"figures": {}, "log": None}) for check in verdict.checks)
    return verdict.model_copy(update={"finished": "", "engine": {}, "checks": checks})
