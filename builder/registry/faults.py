"""What a registry's refusal means: one sentence with the registry, what was refused and why, and the remedy."""

from __future__ import annotations

import json

from builder.errors import RegistryError

LONGEST_REASON = 300  # characters of a server's text that people see
_TO_LOG_IN = frozenset({401, 403})


class TransientError(Exception):
    """An attempt failed in a way that the next one may not; `pause` is what the server asked for, in seconds."""

    def __init__(self, message: str, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause


class DamagedError(RegistryError):
    """A registry answered with other bytes than it was asked for, or with a document that is none."""

    default_remedy = "the registry's storage, or something between, is damaged: push it again"


class StoppedError(Exception):
    """Another part of the same transfer failed, so this one gave up."""


def refusal(registry: str, action: str, status: int, reason: str, *, known: bool) -> RegistryError:
    """Return the error of a refused request; `known` says whether there is a login for the registry."""
    return RegistryError(
        f"{registry} refused to {action}: HTTP {status} {reason}".rstrip(),
        remedy=_remedy(registry, status, known=known),
    )


def reason_of(status_text: str, body: bytes) -> str:
    """Return why a registry refused: the errors in its answer (distribution specification), else the status text."""
    said = "; ".join(f"{code}: {message}".rstrip(": ") for code, message in _errors_in(body))
    return " ".join((said or status_text).split())[:LONGEST_REASON]


def codes_of(body: bytes) -> frozenset[str]:
    """Return the codes of the errors in an answer (distribution specification 1.1, error codes)."""
    return frozenset(code for code, _ in _errors_in(body))


def _errors_in(body: bytes) -> list[tuple[str, str]]:
    try:
        return [(str(error["code"]), str(error.get("message", ""))) for error in json.loads(body)["errors"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _remedy(registry: str, status: int, *, known: bool) -> str:
    if status in _TO_LOG_IN and not known:
        return f"run `docker login {registry}`, or check the repository's name"
    if status in _TO_LOG_IN:
        return f"the login for {registry} may not do that: log in with one that may, or check the repository's name"
    if status == 404:
        return "check the name of the repository and the tag"
    if status == 413:
        return "raise the size limit of the registry, or of the proxy before it"
    return "look into the registry's log"
