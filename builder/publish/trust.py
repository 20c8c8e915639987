"""Which sigstore is believed: the public one, whose roots TUF brings, or another, whose roots are in a file."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from builder.errors import InvalidDocumentError, RegistryError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sigstore.models import ClientTrustConfig
    from sigstore.verify import Verifier

T = TypeVar("T")


def load_verifier(path: Path | None) -> Verifier:
    """Return what verifies by the roots in a trusted_root.json, without it by those of the public sigstore.

    Raises UsageError, InvalidDocumentError; RegistryError if the public roots cannot be fetched.
    """
    _require_sigstore()
    from sigstore.models import TrustedRoot  # noqa: PLC0415 - an extra
    from sigstore.verify import Verifier  # noqa: PLC0415

    if path is None:
        return Verifier(trusted_root=load_trust_config(None).trusted_root)
    return _read(path, "trusted_root.json", lambda: Verifier(trusted_root=TrustedRoot.from_file(str(path))))


def load_trust_config(path: Path | None) -> ClientTrustConfig:
    """Return the roots and services that a client trust config names, without it those of the public sigstore.

    Raises UsageError, InvalidDocumentError; RegistryError if the public ones cannot be fetched.
    """
    _require_sigstore()
    from sigstore.errors import Error  # noqa: PLC0415 - an extra
    from sigstore.models import ClientTrustConfig  # noqa: PLC0415

    if path is not None:
        return _read(path, "client trust config", lambda: ClientTrustConfig.from_json(path.read_text("utf-8")))
    try:
        return ClientTrustConfig.production()
    except (Error, OSError) as error:
        raise RegistryError(
            f"the roots of the public sigstore cannot be fetched: {error}",
            remedy="look at the network, or give roots in a file: --trust-root to verify, --trust-config to publish",
        ) from None


def _require_sigstore() -> None:
    if find_spec("sigstore") is None:
        raise UsageError("signatures by an identity need an extra", remedy="pip install 'envbuild[keyless]'")


def _read(path: Path, kind: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", remedy=f"give the path of a {kind}") from None
    except Exception as error:  # noqa: BLE001 - the library raises errors of many kinds
        raise InvalidDocumentError(f"{path} is no {kind} of sigstore: {_said(error)}") from None


def _said(error: Exception) -> str:
    """Return what is wrong with a file, in one line."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return ": ".join([*(str(part) for part in first["loc"]), first["msg"]])
