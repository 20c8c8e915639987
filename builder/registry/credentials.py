"""Who the user is at a registry: Docker's config.json and the credential helpers that it names; secrets stay hidden."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder.errors import InvalidDocumentError, RegistryError, UsageError
from builder.process import MissingProgramError, run

if TYPE_CHECKING:
    from pathlib import Path

HELPER_TIMEOUT = 30.0  # seconds
DOCKER_HUB = "docker.io"
DOCKER_HUB_LOGIN = "https://index.docker.io/v1/"  # the name under which `docker login` keeps it
_NOT_FOUND = b"credentials not found"  # what every helper prints, on standard output
_TOKEN_USER = "<token>"  # noqa: S105 - the user name that marks an identity token


@dataclass(frozen=True, kw_only=True, slots=True)
class Credential:
    """A user and a password, or an identity token that stands for both."""

    user: str
    password: str = field(default="", repr=False)
    identity_token: str | None = field(default=None, repr=False)

    @property
    def basic(self) -> str:
        """The value of a basic `Authorization` header (RFC 7617)."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    @property
    def secrets(self) -> tuple[str, ...]:
        """Every spelling of the secret."""
        return tuple(text for text in (self.password, self.identity_token, self.basic.removeprefix("Basic ")) if text)


def find_credential(registry: str, folder: Path) -> Credential | None:
    """Return the login for `host[:port]` of the Docker configuration in `folder`, or None: anonymous.

    A helper for this registry is asked first, then the store of all registries, then the file itself. Raises UsageError
    if the file cannot be read, InvalidDocumentError if it is broken, RegistryError if a helper is; what they hold is
    not part of the message.
    """
    path = folder / "config.json"
    config = _read(path)
    helper = _mapping(config, "credHelpers", path).get(registry) or config.get("credsStore")
    if helper:
        found = _ask_helper(str(helper), _login_name(registry), path)
        if found is not None:
            return found
    for name, entry in _mapping(config, "auths", path).items():
        if _host_of(name) == _host_of(_login_name(registry)) and isinstance(entry, dict):
            return _from_entry(entry, registry, path)
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}",
            remedy="make it readable, or set DOCKER_CONFIG to the folder of another one (an empty folder: no login)",
        ) from error
    except ValueError:
        raise _broken(path) from None
    if not isinstance(value, dict):
        raise _broken(path)
    return value


def _mapping(config: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, dict):
        raise _broken(path)
    return value


def _broken(path: Path) -> InvalidDocumentError:
    return InvalidDocumentError(
        f"{path} is not a Docker configuration", remedy="repair it, or set DOCKER_CONFIG to another folder"
    )


def _login_name(registry: str) -> str:
    return DOCKER_HUB_LOGIN if registry == DOCKER_HUB else registry


def _host_of(name: str) -> str:
    return name.partition("://")[2].partition("/")[0] or name.partition("/")[0]


def _from_entry(entry: dict[str, Any], registry: str, path: Path) -> Credential | None:
    token = entry.get("identitytoken")
    user, password = str(entry.get("username", "")), str(entry.get("password", ""))
    if entry.get("auth"):
        try:
            user, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError, TypeError, ValueError):
            raise InvalidDocumentError(
                f"{path} holds a damaged login for {registry}", remedy=f"run `docker login {registry}` again"
            ) from None
    if not token and not user:
        return None
    return Credential(user=user, password=password.rstrip("\0"), identity_token=token or None)


def _ask_helper(helper: str, registry: str, path: Path) -> Credential | None:
    program = f"docker-credential-{helper}"
    try:
        ended = run([program, "get"], stdin=registry.encode(), timeout=HELPER_TIMEOUT)
    except MissingProgramError as error:
        raise RegistryError(
            f"{path} names the credential helper {program}, which is not installed",
            remedy=f"install {program}, or take it out of that file",
        ) from error
    if ended.code != 0 and _NOT_FOUND in ended.stdout:
        return None
    try:
        answer = json.loads(ended.stdout) if ended.code == 0 and not ended.timed_out else None
        user, secret = answer["Username"], answer["Secret"]  # type: ignore[index]
    except (ValueError, KeyError, TypeError):
        how = "did not answer" if ended.timed_out else f"failed with exit code {ended.code}"
        raise RegistryError(
            f"the credential helper {program} {how} for {registry}", remedy=f"run `docker login {registry}` again"
        ) from None
    if user == _TOKEN_USER:
        return Credential(user=user, identity_token=secret)
    return Credential(user=user, password=secret)
