"""Opens connections to registries: encrypted, through the user's proxies, by the user's CA bundle, with deadlines."""

from __future__ import annotations

import contextlib
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from urllib3.exceptions import HTTPError

from builder.download import innermost, shown
from builder.errors import RegistryError
from builder.registry.faults import DamagedError, TransientError
from builder.registry.reference import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.download import Patience
    from builder.registry.content import Payload
    from builder.registry.watch import Watch
    from builder.settings import Settings

PIECE = 1 << 16
LARGEST_DOCUMENT = 4 << 20  # bytes; what a registry must accept as a manifest (OCI distribution specification 1.1)
SILENT_CONNECT = 20.0  # seconds until a host that does not even answer the call is given up
SLOWEST = 16 << 10  # bytes per second; a request that is slower is given up


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """A part of a payload that a request carries: `length` bytes from `start`; `watch` sees them leave."""

    payload: Payload
    start: int
    length: int
    watch: Watch


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a server answered to a request for `url`: `headers` ignore case, `pieces` are the body as it comes."""

    status: int
    reason: str
    url: str
    headers: Mapping[str, str]
    pieces: Iterator[bytes]

    def body(self) -> bytes:
        """Return a small body; raises DamagedError if it is none."""
        data = bytearray()
        for piece in self.pieces:
            data += piece
            if len(data) > LARGEST_DOCUMENT:
                raise DamagedError(f"the answer of {shown(self.url)} is longer than {LARGEST_DOCUMENT >> 20} MiB")
        return bytes(data)

    @property
    def location(self) -> str:
        """The URL where to go on; raises TransientError if the server names none."""
        if not self.headers.get("Location"):
            raise TransientError("the answer names no Location")
        return urljoin(self.url, self.headers["Location"])


class Connections:
    """The connections of one command; threads may share them. Unencrypted only to loopback and where the user says."""

    def __init__(self, settings: Settings, patience: Patience) -> None:
        self._silence = patience.silence
        self._plain = frozenset(settings.insecure_registries)
        self._verify: str | bool = str(settings.ca_bundle) if settings.ca_bundle else True
        self._session = requests.Session()
        self._session.headers.update({"User-Agent": "envbuild", "Accept-Encoding": "identity"})
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=patience.parallel))

    def close(self) -> None:
        """End all connections."""
        self._session.close()

    def is_plain(self, host: str) -> bool:
        """Say whether `host[:port]` is spoken to without encryption."""
        return is_loopback(host) or host in self._plain

    @contextlib.contextmanager
    def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Slice | Mapping[str, str] | None = None,
        authorization: str | None = None,
    ) -> Iterator[Answer]:
        """Send one request, redirects not followed; a mapping as body is a form.

        Raises TransientError if the connection fails, RegistryError if it must not be made or cannot be trusted.
        """
        self._check_encrypted(url)
        with contextlib.ExitStack() as stack:
            data = stack.enter_context(self._data(body))
            with _translated(url):
                response = self._session.request(
                    method,
                    url,
                    headers=dict(headers or {}),
                    data=data,  # type: ignore[arg-type]
                    auth=_Authorization(authorization),
                    stream=True,
                    allow_redirects=False,
                    timeout=(min(self._silence, SILENT_CONNECT), self._silence),
                    # with the request: given to the session alone, the environment's bundle would win over it
                    verify=self._verify,
                    proxies={"no_proxy": urlsplit(url).hostname or ""} if is_loopback(urlsplit(url).netloc) else None,
                )
            stack.callback(response.close)
            yield Answer(
                status=response.status_code,
                reason=response.reason or "",
                url=url,
                headers=response.headers,
                pieces=self._pieces(method, response),
            )

    def _check_encrypted(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme == "https" or (parts.scheme == "http" and self.is_plain(parts.netloc)):
            return
        raise RegistryError(
            f"{shown(url)} is not encrypted, so nothing was sent there",
            remedy=f"let the registry name https addresses, or set ENVBUILD_INSECURE_REGISTRIES={parts.netloc}",
        )

    @contextlib.contextmanager
    def _data(self, body: bytes | Slice | Mapping[str, str] | None) -> Iterator[object]:
        if not isinstance(body, Slice):
            yield body
        elif not body.length:
            yield b""
        else:
            with body.payload.open() as file:
                yield _Reader(body, file, self._deadline(body.length))

    def _pieces(self, method: str, response: requests.Response) -> Iterator[bytes]:
        announced = response.headers.get("Content-Length", "")
        left = int(announced) if announced.isdigit() else None
        if method == "HEAD":
            left = 0
        deadline = self._deadline(left or 0)
        while left != 0:
            with _translated(response.url):
                piece: bytes = response.raw.read1(PIECE)
            if not piece:
                break
            left = None if left is None else left - len(piece)
            _check_deadline(deadline)
            yield piece
        if left:
            raise TransientError(f"the answer was cut, {left} bytes are missing")

    def _deadline(self, size: int) -> float:
        return time.monotonic() + 2 * self._silence + size / SLOWEST


class _Authorization(AuthBase):
    """Sets the header of a request, or none: else `requests` would take a login from the user's netrc file."""

    def __init__(self, header: str | None) -> None:
        self._header = header

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._header is not None:
            request.headers["Authorization"] = self._header
        return request


class _Reader:
    """A slice as `requests` sends it: of known length, read in small pieces, stopped when it is told to or too slow."""

    def __init__(self, part: Slice, file: BinaryIO, deadline: float) -> None:
        self._part = part
        self._file = file
        self._deadline = deadline
        self._sent = 0
        file.seek(part.start)

    def __len__(self) -> int:
        return self._part.length

    def __iter__(self) -> Iterator[bytes]:
        while piece := self.read():
            yield piece

    def read(self, size: int = PIECE) -> bytes:
        """Return the next bytes, none at the end of the slice."""
        _check_deadline(self._deadline)
        self._part.watch.at(self._part.start + self._sent)
        piece = self._file.read(min(size, self._part.length - self._sent))
        if not piece and self._sent < self._part.length:
            raise RegistryError(f"the file of {self._part.payload.digest} became shorter while it was sent")
        self._sent += len(piece)
        return piece


def _check_deadline(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TransientError(f"it was slower than {SLOWEST >> 10} KiB/s")


@contextlib.contextmanager
def _translated(url: str) -> Iterator[None]:
    """Turn what a failed connection raises into the errors of this package."""
    host = urlsplit(url).netloc.rpartition("@")[2]
    try:
        yield
    except (requests.ConnectionError, requests.Timeout, HTTPError) as error:
        cause = innermost(error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise RegistryError(
                f"the certificate of {host} is not trusted",
                remedy="set REQUESTS_CA_BUNDLE to a file with the certificate authority of the registry",
                evidence=(cause.verify_message,),
            ) from error
        if isinstance(cause, ssl.SSLError) and cause.reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST"}:
            raise RegistryError(
                f"{host} does not speak https",
                remedy=f"if it may be spoken to unencrypted, set ENVBUILD_INSECURE_REGISTRIES={host}",
            ) from error
        raise TransientError(str(innermost(error)) or type(error).__name__) from error
    except (requests.RequestException, OSError) as error:
        raise RegistryError(f"cannot speak to {host}: {str(innermost(error)) or type(error).__name__}") from error
