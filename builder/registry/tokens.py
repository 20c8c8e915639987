"""Proves to registries who the user is: challenges (RFC 9110, 11.6.1), basic logins, bearer tokens, renewed in time."""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode

from builder.errors import RegistryError
from builder.registry.credentials import Credential, find_credential

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CLIENT = "envbuild"
SHORTEST_LIFE = 60.0  # seconds; a token without `expires_in` lives that long (distribution, spec/auth/token)
_CHALLENGE = re.compile(r'(?:^|,)\s*(\w+)(?=\s+\w+\s*=|\s*$|\s*,)|(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))')


class TokenService(Protocol):
    """Asks a token service: GET with a header, or POST with a form; returns the status and the body."""

    def __call__(self, url: str, *, header: str | None, form: Mapping[str, str] | None) -> tuple[int, bytes]:
        """Ask once; raises TransientError if another attempt may be answered."""


@dataclass(frozen=True, slots=True)
class _Token:
    header: str = field(repr=False)
    expires: float


def parse_challenges(header: str) -> dict[str, dict[str, str]]:
    """Return the schemes of a `WWW-Authenticate` header, in lower case, each with its parameters."""
    schemes: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for scheme, name, quoted, bare in _CHALLENGE.findall(header):
        if scheme:
            current = schemes.setdefault(scheme.lower(), {})
        else:
            current[name.lower()] = re.sub(r"\\(.)", r"\1", quoted) or bare
    return schemes


class Authorizer:
    """Keeps what was proven to each registry; threads that need the same token wait for one of them to fetch it."""

    def __init__(self, config_folder: Path, ask: TokenService) -> None:
        self._folder = config_folder
        self._ask = ask
        self._lock = threading.Lock()
        self._credentials: dict[str, Credential | None] = {}
        self._headers: dict[tuple[str, tuple[str, ...]], _Token] = {}
        self._basic: set[str] = set()

    def __repr__(self) -> str:
        return "Authorizer()"

    def header(self, registry: str, scopes: tuple[str, ...]) -> str | None:
        """Return the `Authorization` that is known to serve, or None: not asked for yet, or expired."""
        if registry in self._basic:
            credential = self._credentials[registry]
            return credential.basic if credential else None
        token = self._headers.get((registry, scopes))
        return token.header if token and token.expires > time.monotonic() else None

    def renew(self, registry: str, scopes: tuple[str, ...], challenge: str, *, used: str | None) -> bool:
        """Answer a challenge; say whether there is now another header than the one `used`.

        Raises RegistryError if the token service refuses or cannot be understood.
        """
        with self._lock:
            known = self.header(registry, scopes)
            if known is not None and known != used:
                return True
            schemes = parse_challenges(challenge)
            credential = self._credential(registry)
            if "bearer" in schemes:
                self._headers[registry, scopes] = self._fetch(registry, scopes, schemes["bearer"], credential)
            elif "basic" in schemes and credential is not None:
                self._basic.add(registry)
            return self.header(registry, scopes) not in {None, used}

    def redacted(self, text: str) -> str:
        """Return a text of a server without any secret that it may repeat."""
        with self._lock:
            secrets = [secret for known in self._credentials.values() if known for secret in known.secrets]
            secrets += [token.header.partition(" ")[2] for token in self._headers.values()]
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def knows(self, registry: str) -> bool:
        """Say whether there is a login for a registry."""
        with self._lock:
            return self._credential(registry) is not None

    def _credential(self, registry: str) -> Credential | None:
        if registry not in self._credentials:
            self._credentials[registry] = find_credential(registry, self._folder)
        return self._credentials[registry]

    def _fetch(
        self, registry: str, scopes: tuple[str, ...], challenge: Mapping[str, str], credential: Credential | None
    ) -> _Token:
        realm = challenge.get("realm", "")
        if "://" not in realm:
            raise RegistryError(f"{registry} asks for a token, but does not say where to get one")
        query = [(name, value) for name, value in (("service", challenge.get("service")),) if value]
        wanted = scopes or tuple(filter(None, [challenge.get("scope")]))
        if credential is not None and credential.identity_token:
            form = {**dict(query), "grant_type": "refresh_token", "client_id": CLIENT, "scope": " ".join(wanted)}
            status, body = self._ask(realm, header=None, form={**form, "refresh_token": credential.identity_token})
        else:
            query += [("scope", scope) for scope in wanted]
            url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}"
            status, body = self._ask(url, header=credential.basic if credential else None, form=None)
        return _token_from(registry, status, body, credential)


def _token_from(registry: str, status: int, body: bytes, credential: Credential | None) -> _Token:
    if status >= 400:
        who = "the login that Docker's configuration holds" if credential else "anonymous access"
        raise RegistryError(
            f"the token service of {registry} refused {who}: HTTP {status}",
            remedy=f"run `docker login {registry}`",
        )
    try:
        answer = json.loads(body)
        text = answer.get("token") or answer["access_token"]
        life = float(answer.get("expires_in") or SHORTEST_LIFE)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RegistryError(f"the token service of {registry} answered without a token") from None
    return _Token(f"Bearer {text}", time.monotonic() + life)
