"""The door to HTTP downloads: retries with back-off, resume by Range, sha256 proven before the store has a file."""

from __future__ import annotations

import contextlib
import re
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit, urlunsplit

from builder.errors import ResolveError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import requests

    from builder.settings import Settings
    from builder.store import Store

T = TypeVar("T")

TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
GONE_STATUS = frozenset({404, 410})


_TOO_OFTEN = re.compile(r"HTTP 429\b|\b429 too many requests", re.IGNORECASE)


def remedy_for(said: str, otherwise: str) -> str:
    """Return what helps against what a server said: to wait, if it is asked too often (429, RFC 6585)."""
    if _TOO_OFTEN.search(said):
        return (
            "the server limits how often it is asked: wait some minutes and run the same command again, or use a mirror"
        )
    return otherwise


class DownloadError(ResolveError):
    """A file could not be fetched, or is not the file that was asked for."""


class NotFoundError(DownloadError):
    """The server says that there is no such file; `url` is the address that was asked for."""

    def __init__(self, url: str, status: int) -> None:
        super().__init__(f"no such file on the server: {shown(url)} (HTTP {status})")
        self.url = url


class _TransientError(Exception):
    """An attempt failed in a way that the next one may not; `pause` is what the server asked for, in seconds."""

    def __init__(self, message: str, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause


class _StoppedError(Exception):
    """Another download of the same call failed, so this one gave up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Download:
    """A file wanted in the store. `size` is in bytes (None: not known); `label` is its name for people."""

    url: str
    sha256: str
    size: int | None
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a `fetch_all` is: bytes and files, and the label of the file that moved last."""

    done: int
    total: int
    files_done: int
    files_total: int
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A small document: its address after redirects, its media type, its bytes."""

    url: str
    content_type: str
    body: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How hard to try: attempts per file, first pause and wait for a silent server in seconds, files at a time."""

    attempts: int = 5
    pause: float = 0.5
    silence: float = 60.0
    parallel: int = 8


DEFAULT_PATIENCE = Patience()
LONGEST_PAUSE = 30.0
PIECE = 1 << 16  # what is lost at most when a connection breaks


def fetch_all(
    downloads: Iterable[Download],
    store: Store,
    settings: Settings,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    patience: Patience = DEFAULT_PATIENCE,
) -> None:
    """Bring every file into the store, several at once; files that are there already cost nothing.

    `on_progress` is called from several threads, one at a time. The first failure ends all downloads and is raised as
    DownloadError (NotFoundError: the server has no such file). Parts of interrupted files are kept and continued.
    """
    wanted = {download.sha256: download for download in downloads if not store.has(download.sha256)}
    if not wanted:
        return
    tally = _Tally(tuple(wanted.values()), on_progress)
    with _session(settings, patience) as session, ThreadPoolExecutor(patience.parallel) as pool:
        fetcher = _Fetcher(session=session, store=store, patience=patience, tally=tally)
        jobs = [pool.submit(fetcher.fetch, download) for download in wanted.values()]
        try:
            ended, _ = wait(jobs, return_when=FIRST_EXCEPTION)
        finally:
            fetcher.stop.set()
            for job in jobs:
                job.cancel()
    for job in sorted(ended, key=jobs.index):
        error = job.exception()
        if error is not None and not isinstance(error, _StoppedError):
            raise error


def get_bytes(url: str, settings: Settings, *, patience: Patience = DEFAULT_PATIENCE) -> bytes:
    """Return a small document's bytes; raise DownloadError (NotFoundError: the server has no such document)."""
    return get(url, settings, patience=patience).body


def get(
    url: str,
    settings: Settings,
    *,
    headers: Mapping[str, str] | None = None,
    patience: Patience = DEFAULT_PATIENCE,
) -> Answer:
    """Fetch a small document into memory; raise DownloadError (NotFoundError: the server has no such document)."""
    with _session(settings, patience) as session:

        def attempt() -> Answer:
            with _opened(session, url, headers or {}, patience) as response:
                body = b"".join(_pieces(response))
                return Answer(url=response.url, content_type=response.headers.get("Content-Type", ""), body=body)

        return _with_retries(attempt, shown(url), url, patience, threading.Event())


def shown(url: str) -> str:
    """Return a URL as it may be shown: without user, password, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def innermost(error: BaseException) -> BaseException:
    """Return the innermost reason of a failed request, which names the fault and not the layers above it."""
    reason = error
    while isinstance(inner := getattr(reason, "reason", None) or (reason.args[0] if reason.args else None), Exception):
        reason = inner
    return reason


@dataclass(kw_only=True, slots=True)
class _Fetcher:
    """What the downloads of one `fetch_all` share."""

    session: requests.Session
    store: Store
    patience: Patience
    tally: _Tally
    stop: threading.Event = field(default_factory=threading.Event)

    def fetch(self, download: Download) -> None:
        """Bring one file into the store; a second process that wants it waits and finds it there."""
        with self.store.exclusive(f"download-{download.sha256}"):
            if not self.store.has(download.sha256):
                self._complete(download)
        self.tally.finish(download)

    def _complete(self, download: Download) -> None:
        part = self.store.root / "tmp" / f"part-{download.sha256}"
        resumed = part.exists()
        self._transfer(download, part)
        try:
            self.store.add(part, download.sha256)
        except ResolveError as error:
            if not resumed:
                raise DownloadError(
                    f"{download.label}: the server sent other bytes than the locked ones",
                    remedy="the mirror is damaged or was changed; check it, or set another one",
                    evidence=(error.message, shown(download.url)),
                ) from error
            self._complete(download)

    def _transfer(self, download: Download, part: Path) -> None:
        def attempt() -> None:
            self._continue(download, part)
            seen = part.stat().st_size
            if download.size is not None and seen < download.size:
                raise _TransientError(f"{seen} bytes came, {download.size} are locked")

        _with_retries(attempt, download.label, download.url, self.patience, self.stop)

    def _continue(self, download: Download, part: Path) -> None:
        offset = part.stat().st_size if part.exists() else 0
        if offset and offset == download.size:
            return
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        with _opened(self.session, download.url, headers, self.patience) as response:
            if response.status_code == 416:
                part.unlink()
                raise _TransientError("the server cannot continue the file")
            start = _start_of(response)
            if start not in {0, offset}:
                raise _TransientError(f"the server continued at byte {start} instead of {offset}")
            with self.store.room(), part.open("ab") as file:
                file.truncate(start)
                self.tally.begin(download, start)
                for piece in _pieces(response):
                    if self.stop.is_set():
                        raise _StoppedError
                    file.write(piece)
                    self.tally.add(download, len(piece))


class _Tally:
    """Adds up what came of each file, and tells the caller."""

    def __init__(self, downloads: tuple[Download, ...], on_progress: Callable[[Progress], None] | None) -> None:
        self._downloads = downloads
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._done: dict[str, int] = {}
        self._finished: set[str] = set()

    def begin(self, download: Download, offset: int) -> None:
        """Say that a file starts (again) at this byte."""
        self._set(download, offset)

    def add(self, download: Download, count: int) -> None:
        """Say that more bytes of a file came."""
        self._set(download, self._done[download.sha256] + count)

    def finish(self, download: Download) -> None:
        """Say that a file is in the store."""
        self._finished.add(download.sha256)
        self._set(download, download.size or self._done.get(download.sha256, 0))

    def _set(self, download: Download, done: int) -> None:
        with self._lock:
            self._done[download.sha256] = done
            if self._on_progress is not None:
                self._on_progress(self._progress(download.label))

    def _progress(self, label: str) -> Progress:
        return Progress(
            done=sum(self._done.values()),
            total=sum(item.size or self._done.get(item.sha256, 0) for item in self._downloads),
            files_done=len(self._finished),
            files_total=len(self._downloads),
            label=label,
        )


def _with_retries(attempt: Callable[[], T], label: str, url: str, patience: Patience, stop: threading.Event) -> T:
    """Try until an attempt ends well; the pauses double, or are as long as the server asked for."""
    for number in range(patience.attempts):
        try:
            return attempt()
        except _TransientError as error:
            last = error
        pause = min(max(patience.pause * 2**number, last.pause), LONGEST_PAUSE)
        if number + 1 < patience.attempts and stop.wait(pause):
            raise _StoppedError
    raise DownloadError(
        f"{label}: could not be fetched in {patience.attempts} attempts: {last}",
        remedy=remedy_for(str(last), "check the network and the mirror, then run the same command again"),
        evidence=(shown(url),),
    ) from last


@contextlib.contextmanager
def _session(settings: Settings, patience: Patience) -> Iterator[requests.Session]:
    import requests  # noqa: PLC0415 - slow to import, and most commands fetch nothing
    from requests.adapters import HTTPAdapter  # noqa: PLC0415 - as above

    with requests.Session() as session:
        session.headers.update({"User-Agent": "envbuild", "Accept-Encoding": "identity"})
        session.verify = str(settings.ca_bundle) if settings.ca_bundle else True
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(pool_maxsize=patience.parallel))
        yield session


@contextlib.contextmanager
def _opened(
    session: requests.Session, url: str, headers: Mapping[str, str], patience: Patience
) -> Iterator[requests.Response]:
    """Ask for a document; turn what `requests` raises and refusing statuses into this module's errors."""
    import requests  # noqa: PLC0415 - as above

    try:
        # `verify` goes with the request: given to the session alone, the environment's bundle would win over it.
        with session.get(
            url, headers=dict(headers), stream=True, timeout=patience.silence, verify=session.verify
        ) as response:
            _refuse(response, url)
            yield response
    except requests.exceptions.SSLError as error:
        raise DownloadError(
            f"the certificate of {urlsplit(url).hostname} is not trusted",
            remedy="set REQUESTS_CA_BUNDLE to a file with your mirror's certificate authority",
            evidence=(str(error),),
        ) from error
    except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
        raise _TransientError(_cause(error)) from error
    except (requests.RequestException, OSError) as error:
        raise DownloadError(f"cannot fetch {shown(url)}: {_cause(error)}") from error


def _refuse(response: requests.Response, url: str) -> None:
    status = response.status_code
    if status in TRANSIENT_STATUS:
        asked = response.headers.get("Retry-After", "")
        raise _TransientError(f"HTTP {status} {response.reason}", float(asked) if asked.isdigit() else 0.0)
    if status in GONE_STATUS:
        raise NotFoundError(url, status)
    if status >= 400 and status != 416:
        raise DownloadError(f"the server refused {shown(url)}: HTTP {status} {response.reason}")


def _pieces(response: requests.Response) -> Iterator[bytes]:
    yield from response.iter_content(PIECE)


def _start_of(response: requests.Response) -> int:
    """Return the first byte's position that a response carries: of `Content-Range: bytes 5-9/10` (RFC 9110, 14.4)."""
    if response.status_code != 206:
        return 0
    first = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdigit() else -1


def _cause(error: Exception) -> str:
    """Return in words why a request failed."""
    reason = innermost(error)
    return str(reason) or type(reason).__name__
