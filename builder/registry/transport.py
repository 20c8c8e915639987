"""Asks registries: who the user is is proven, redirects are followed, refusals become errors, faults are retried."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from builder.download import TRANSIENT_STATUS, remedy_for
from builder.errors import RegistryError
from builder.registry.connection import Connections
from builder.registry.credentials import DOCKER_HUB
from builder.registry.faults import TransientError, codes_of, reason_of, refusal
from builder.registry.tokens import Authorizer
from builder.registry.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from builder.download import Patience
    from builder.registry.connection import Answer, Slice
    from builder.registry.reference import Repository
    from builder.settings import Settings

T = TypeVar("T")

LONGEST_PAUSE = 30.0  # seconds, of our own back-off
LONGEST_ASKED_PAUSE = 300.0  # seconds, of a Retry-After: who asks for more gets no second attempt
REDIRECTS = 5
REDIRECT_STATUS = frozenset({301, 302, 303, 307, 308})
DOCKER_HUB_HOST = "registry-1.docker.io"


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One question to a registry. `action` completes "REGISTRY refused to …"; `accept` are the statuses that answer it.

    `path` is what follows `/v2/NAME/`, or a URL that the registry gave; `writes` asks for the right to push, `sources`
    for the right to read other repositories too; `again` are error codes of a refusal that may be over a moment later.
    """

    repository: Repository
    action: str
    path: str
    method: str = "GET"
    accept: frozenset[int] = frozenset({200})
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Slice | None = None
    writes: bool = False
    sources: tuple[str, ...] = ()
    again: frozenset[str] = frozenset()

    @property
    def registry(self) -> str:
        """The registry that is asked."""
        return self.repository.registry

    @property
    def scopes(self) -> tuple[str, ...]:
        """The rights that a token for this request needs."""
        rights = "pull,push" if self.writes else "pull"
        return (f"repository:{self.repository.name}:{rights}", *(f"repository:{name}:pull" for name in self.sources))


class Transport:
    """What the requests of one command share. Threads may use it at the same time."""

    def __init__(self, settings: Settings, patience: Patience) -> None:
        self.patience = patience
        self._connections = Connections(settings, patience)
        self._authorizer = Authorizer(settings.docker_config, self._ask_token_service)

    def close(self) -> None:
        """End all connections."""
        self._connections.close()

    def ask(self, request: Request, watch: Watch | None = None) -> tuple[Answer, bytes]:
        """Send a request until it is answered, and return the answer with its small body; raises RegistryError."""

        def attempt() -> tuple[Answer, bytes]:
            with self.exchange(request) as answer:
                return answer, answer.body()

        return self.persist(attempt, request, watch)

    def persist(self, attempt: Callable[[], T], request: Request, watch: Watch | None = None) -> T:
        """Try until an attempt ends well; the pauses double, or are as long as the registry asked for."""
        watch = watch or Watch()
        for number in range(self.patience.attempts):
            try:
                return attempt()
            except TransientError as error:
                last = error
            if last.pause > LONGEST_ASKED_PAUSE:
                raise RegistryError(
                    f"{request.registry} does not {request.action} for the next {last.pause:.0f} s: {last}",
                    remedy="run the same command again then",
                )
            if number + 1 < self.patience.attempts:
                watch.pause(max(min(self.patience.pause * 2**number, LONGEST_PAUSE), last.pause))
        raise RegistryError(
            f"{request.registry} did not {request.action} in {self.patience.attempts} attempts: {last}",
            remedy=remedy_for(str(last), "check the network and the registry, then run the same command again"),
        ) from last

    @contextlib.contextmanager
    def exchange(self, request: Request) -> Iterator[Answer]:
        """Send a request once and give its answer; raises TransientError, or RegistryError if it is refused."""
        registry, scopes = request.registry, request.scopes
        used = self._authorizer.header(registry, scopes)
        with self._followed(request, used) as answer:
            if answer.status != 401:
                yield self._accepted(request, answer)
                return
            refused = answer
            body = refused.body()
        challenge = refused.headers.get("WWW-Authenticate", "")
        if not self._authorizer.renew(registry, scopes, challenge, used=used):
            raise self._refusal(request, refused, body)
        with self._followed(request, self._authorizer.header(registry, scopes)) as answer:
            yield self._accepted(request, answer)

    @contextlib.contextmanager
    def _followed(self, request: Request, authorization: str | None) -> Iterator[Answer]:
        """Send a request and go where a reading one is sent on to; the authorization stays with the registry."""
        home = self._home(request.registry)
        url = request.path if "://" in request.path else f"{home}/v2/{request.repository.name}/{request.path}"
        for _ in range(REDIRECTS):
            with self._connections.open(
                request.method,
                url,
                headers=request.headers,
                body=request.body,
                authorization=authorization if _origin(url) == _origin(home) else None,
            ) as answer:
                if answer.status not in REDIRECT_STATUS or request.method not in {"GET", "HEAD"}:
                    yield answer
                    return
                url = answer.location
        raise RegistryError(f"{request.registry} redirects again and again instead of answering")

    def _home(self, registry: str) -> str:
        scheme = "http" if self._connections.is_plain(registry) else "https"
        return f"{scheme}://{DOCKER_HUB_HOST if registry == DOCKER_HUB else registry}"

    def _accepted(self, request: Request, answer: Answer) -> Answer:
        if answer.status in request.accept:
            return answer
        raise self._refusal(request, answer, answer.body())

    def _refusal(self, request: Request, answer: Answer, body: bytes) -> RegistryError | TransientError:
        reason = self._authorizer.redacted(reason_of(answer.reason, body))
        if answer.status in TRANSIENT_STATUS or request.again & codes_of(body):
            return TransientError(f"HTTP {answer.status} {reason}", _asked_pause(answer.headers))
        known = self._authorizer.knows(request.registry)
        return refusal(request.registry, request.action, answer.status, reason, known=known)

    def _ask_token_service(self, url: str, *, header: str | None, form: Mapping[str, str] | None) -> tuple[int, bytes]:
        method = "POST" if form is not None else "GET"
        with self._connections.open(method, url, body=form, authorization=header) as answer:
            if answer.status in TRANSIENT_STATUS:
                raise TransientError(
                    f"the token service answers HTTP {answer.status} {answer.reason}", _asked_pause(answer.headers)
                )
            return answer.status, answer.body()


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _asked_pause(headers: Mapping[str, str]) -> float:
    """Return the seconds of a `Retry-After`, which is a number or a date (RFC 9110, 10.2.3)."""
    text = headers.get("Retry-After", "")
    if text.isdigit():
        return float(text)
    with contextlib.suppress(ValueError):
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    return 0.0
