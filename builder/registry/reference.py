"""What people call an image in a registry: `host[:port]/repository[:tag][@sha256:…]`, read or refused with a reason."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace

from builder.errors import UsageError

_HOST = re.compile(
    r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:]+\])"
)
_PORT = re.compile(r"[0-9]{1,5}")
_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
LONGEST_NAME = 255  # characters of host and repository (OCI distribution specification 1.1)
SHAPE = "write host[:port]/repository[:tag][@sha256:…], as in registry.example:5000/team/stack:1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    """A repository of a registry: `registry` is `host[:port]`, `name` its path there."""

    registry: str
    name: str

    def __str__(self) -> str:
        return f"{self.registry}/{self.name}"

    def at(self, identifier: str) -> Reference:
        """Return the reference to a digest or a tag of this repository."""
        if _DIGEST.fullmatch(identifier):
            return Reference(repository=self, digest=identifier)
        _check(_TAG, identifier, "tag", f"{self}:{identifier}")
        return Reference(repository=self, tag=identifier)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """A manifest of a repository, by tag, by digest, or by both (then the digest decides)."""

    repository: Repository
    tag: str | None = None
    digest: str | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.repository}{tag}{digest}"

    @property
    def identifier(self) -> str:
        """What the registry is asked for; raises UsageError if the reference has neither digest nor tag."""
        if self.digest or self.tag:
            return str(self.digest or self.tag)
        raise UsageError(f"{self} names a repository, but no image in it", remedy="add a :tag or a @sha256:… digest")

    def with_digest(self, digest: str) -> Reference:
        """Return the same reference pinned to a digest."""
        return replace(self, digest=digest)


def parse_reference(text: str) -> Reference:
    """Read a reference; raises UsageError that says which part of it is wrong."""
    rest, at, digest = text.partition("@")
    if at:
        _check(_DIGEST, digest, "digest", text)
    name, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        name, colon, tag = rest, "", ""
    if colon:
        _check(_TAG, tag, "tag", text)
    return Reference(repository=parse_repository(name, whole=text), tag=tag or None, digest=digest or None)


def parse_repository(text: str, *, whole: str | None = None) -> Repository:
    """Read `host[:port]/repository`; `whole` is the text that errors show."""
    whole = whole or text
    if "://" in text:
        raise UsageError(f"{whole!r} is a URL, not a reference", remedy=SHAPE)
    registry, slash, name = text.partition("/")
    if not slash or not _is_registry(registry):
        raise UsageError(f"{whole!r} names no registry", remedy=SHAPE)
    host, port = split_port(registry)
    _check(_HOST, host, "host", whole)
    if port is not None and (not _PORT.fullmatch(port) or not 0 < int(port) < 65536):
        raise UsageError(f"{port!r} is no port in {whole!r}", remedy=SHAPE)
    for part in name.split("/"):
        _check(_COMPONENT, part, "part of a repository's name (lower case, digits, single . _ -)", whole)
    if len(text) > LONGEST_NAME:
        raise UsageError(f"{whole!r} is longer than {LONGEST_NAME} characters", remedy=SHAPE)
    return Repository(registry=registry, name=name)


def split_port(registry: str) -> tuple[str, str | None]:
    """Return the host of `host[:port]`, an IPv6 address in its brackets, and the port if there is one."""
    host, colon, port = registry.rpartition(":")
    return (host, port) if colon and not registry.endswith("]") else (registry, None)


def is_loopback(registry: str) -> bool:
    """Say whether `host[:port]` can only be this machine: localhost, 127.0.0.0/8 or ::1."""
    host = split_port(registry)[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_registry(first: str) -> bool:
    """Say whether the first part of a name is a host, as Docker tells it from a part of the repository."""
    return "." in first or ":" in first or first == "localhost"


def _check(pattern: re.Pattern[str], text: str, what: str, whole: str) -> None:
    if not pattern.fullmatch(text):
        raise UsageError(f"{text!r} is no {what} in {whole!r}", remedy=SHAPE)
