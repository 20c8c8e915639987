from __future__ import annotations

import hashlib
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from builder.download import (
    Answer,
    Download,
    DownloadError,
    NotFoundError,
    Patience,
    Progress,
    fetch_all,
    get,
    get_bytes,
    shown,
)
from builder.settings import settings_from
from builder.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.settings import Settings

BODY = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(BODY).hexdigest()
HASTY = Patience(attempts=3, pause=0.0, silence=5.0)


class Server(ThreadingHTTPServer):
    """A small HTTP server whose paths misbehave; it remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked: Counter[str] = Counter()
        self.ranges: list[str] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        path = self.path.strip("/")
        self.server.asked[path] += 1
        wanted = self.headers.get("Range", "")
        if wanted:
            self.server.ranges.append(wanted)
        offset = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        getattr(self, path.replace("-", "_"), self.missing)(self.server.asked[path], offset)

    def good(self, _: int, offset: int) -> None:
        self._send(BODY, offset)

    def no_ranges(self, time: int, _: int) -> None:
        self._send(BODY, 0, cut=100_000 if time == 1 else None)

    def truncated_once(self, time: int, offset: int) -> None:
        self._send(BODY, offset, cut=100_000 if time == 1 else None)

    def truncated_always(self, _: int, offset: int) -> None:
        self._send(BODY, offset, cut=10)

    def wrong(self, _: int, offset: int) -> None:
        self._send(b"x" * len(BODY), offset)

    def short(self, _: int, offset: int) -> None:
        self._send(BODY[:1000], offset)

    def busy_twice(self, time: int, offset: int) -> None:
        if time <= 2:
            self._status(503)
        else:
            self._send(BODY, offset)

    def broken(self, *_: int) -> None:
        self._status(500)

    def limited(self, *_: int) -> None:
        self._status(429)

    def forbidden(self, *_: int) -> None:
        self._status(403)

    def elsewhere(self, *_: int) -> None:
        self.send_response(302)
        self.send_header("Location", "/good")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def missing(self, *_: int) -> None:
        self._status(404)

    def _status(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, body: bytes, offset: int, cut: int | None = None) -> None:
        if offset >= len(body):
            self._status(416)
            return
        rest = body[offset:]
        self.send_response(206 if offset else 200)
        if offset:
            self.send_header("Content-Range", f"bytes {offset}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield http
        http.shutdown()
        thread.join()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_from({"ENVBUILD_STORE": str(tmp_path / "store")})


def wanted(server: Server, path: str, *, sha256: str = SHA256, size: int | None = len(BODY)) -> Download:
    return Download(url=f"{server.url}/{path}", sha256=sha256, size=size, label=path)


@pytest.mark.parametrize("path", ["good", "truncated-once", "no-ranges", "busy-twice", "elsewhere"])
def test_a_file_arrives_whole_whatever_happens_on_the_way(
    path: str, server: Server, store: Store, settings: Settings
) -> None:
    fetch_all([wanted(server, path)], store, settings, patience=HASTY)
    assert store.path(SHA256).read_bytes() == BODY
    assert list((store.root / "tmp").iterdir()) == []


def test_a_truncated_file_is_continued_where_it_ended(server: Server, store: Store, settings: Settings) -> None:
    fetch_all([wanted(server, "truncated-once")], store, settings, patience=HASTY)
    assert server.ranges == ["bytes=65536-"]


def test_the_part_of_a_killed_process_is_continued(server: Server, store: Store, settings: Settings) -> None:
    (store.root / "tmp" / f"part-{SHA256}").write_bytes(BODY[:5000])
    fetch_all([wanted(server, "good")], store, settings, patience=HASTY)
    assert server.ranges == ["bytes=5000-"]
    assert store.path(SHA256).read_bytes() == BODY


@pytest.mark.parametrize("size", [len(BODY), None])
@pytest.mark.parametrize("left", [b"y" * 5000, b"y" * len(BODY), b"y" * (len(BODY) + 7)])
def test_a_damaged_part_is_thrown_away_and_the_file_fetched_again(
    left: bytes, size: int | None, server: Server, store: Store, settings: Settings
) -> None:
    (store.root / "tmp" / f"part-{SHA256}").write_bytes(left)
    fetch_all([wanted(server, "good", size=size)], store, settings, patience=HASTY)
    assert store.path(SHA256).read_bytes() == BODY


def test_a_file_that_the_store_has_is_not_asked_for(server: Server, store: Store, settings: Settings) -> None:
    store.add_bytes(BODY)
    fetch_all([wanted(server, "good")], store, settings, patience=HASTY)
    assert server.asked == Counter()


def test_a_file_that_is_wanted_twice_is_fetched_once(server: Server, store: Store, settings: Settings) -> None:
    fetch_all([wanted(server, "good"), wanted(server, "good")], store, settings, patience=HASTY)
    assert server.asked == Counter({"good": 1})


def test_wrong_bytes_never_reach_the_store(server: Server, store: Store, settings: Settings) -> None:
    with pytest.raises(DownloadError, match="wrong: the server sent other bytes than the locked ones"):
        fetch_all([wanted(server, "wrong")], store, settings, patience=HASTY)
    assert not store.has(SHA256)
    assert not store.has(hashlib.sha256(b"x" * len(BODY)).hexdigest())
    assert server.asked["wrong"] == 1


@pytest.mark.parametrize(
    ("path", "cause"),
    [("broken", "HTTP 500"), ("truncated-always", "IncompleteRead"), ("short", "1000 bytes came, 1024000 are locked")],
)
def test_after_the_last_attempt_the_error_names_file_and_cause(
    path: str, cause: str, server: Server, store: Store, settings: Settings
) -> None:
    with pytest.raises(DownloadError, match=f"{path}: could not be fetched in 3 attempts: .*") as caught:
        fetch_all([wanted(server, path)], store, settings, patience=HASTY)
    assert server.asked[path] == 3
    assert caught.value.evidence == (f"{server.url}/{path}",)
    assert cause in caught.value.message


def test_a_missing_file_has_an_error_of_its_own_and_is_asked_for_once(
    server: Server, store: Store, settings: Settings
) -> None:
    with pytest.raises(NotFoundError, match=r"no such file on the server: http.*/gone"):
        fetch_all([wanted(server, "gone")], store, settings, patience=HASTY)
    assert server.asked["gone"] == 1


def test_a_refusal_is_not_repeated(server: Server, settings: Settings) -> None:
    with pytest.raises(DownloadError, match="HTTP 403"):
        get_bytes(f"{server.url}/forbidden", settings, patience=HASTY)
    assert server.asked["forbidden"] == 1


def test_one_failure_ends_the_other_downloads(server: Server, store: Store, settings: Settings) -> None:
    others = [wanted(server, "good", sha256=f"{number:064x}", size=None) for number in range(1000)]
    with pytest.raises(DownloadError):
        fetch_all([wanted(server, "gone"), *others], store, settings, patience=HASTY)
    assert server.asked["good"] < 1000


def test_an_unreachable_server_is_an_error_after_all_attempts(settings: Settings) -> None:
    with pytest.raises(DownloadError, match=r"could not be fetched in 3 attempts: .*(refused|resolve|connect)"):
        get_bytes("http://127.0.0.1:9/x", settings, patience=HASTY)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "x/y", "http://"])
def test_an_address_that_cannot_be_asked_is_an_error_at_once(url: str, settings: Settings) -> None:
    with pytest.raises(DownloadError, match="cannot fetch"):
        get_bytes(url, settings, patience=HASTY)


def test_a_missing_bundle_of_authorities_is_named(tmp_path: Path) -> None:
    settings = settings_from({"ENVBUILD_STORE": str(tmp_path), "SSL_CERT_FILE": str(tmp_path / "none.pem")})
    with pytest.raises(DownloadError, match=r"none\.pem"):
        get_bytes("https://127.0.0.1:9/x", settings, patience=HASTY)


def test_progress_ends_at_the_total(server: Server, store: Store, settings: Settings) -> None:
    other = hashlib.sha256(BODY[:1000]).hexdigest()
    seen: list[Progress] = []
    downloads = [wanted(server, "truncated-once"), wanted(server, "short", sha256=other, size=None)]
    fetch_all(downloads, store, settings, seen.append, patience=HASTY)
    last = seen[-1]
    assert (last.done, last.total) == (len(BODY) + 1000, len(BODY) + 1000)
    assert (last.files_done, last.files_total) == (2, 2)
    assert all(progress.done <= progress.total for progress in seen)


def test_a_document_comes_with_its_final_address_and_type(server: Server, settings: Settings) -> None:
    answer = get(f"{server.url}/elsewhere", settings, patience=HASTY)
    assert answer == Answer(url=f"{server.url}/good", content_type="text/plain", body=BODY)


def test_a_document_is_never_returned_in_part(server: Server, settings: Settings) -> None:
    assert get_bytes(f"{server.url}/truncated-once", settings, patience=HASTY) == BODY
    with pytest.raises(DownloadError):
        get_bytes(f"{server.url}/truncated-always", settings, patience=HASTY)


def test_a_password_in_an_address_is_not_shown(server: Server, settings: Settings) -> None:
    assert shown("https://me:secret@mirror.example:8080/a/b?token=1#x") == "https://mirror.example:8080/a/b"
    with pytest.raises(DownloadError) as caught:
        get_bytes(f"{server.url.replace('//', '//me:secret@')}/broken", settings, patience=HASTY)
    assert "secret" not in caught.value.message + "".join(caught.value.evidence)


def test_who_asks_too_often_is_told_to_wait(server: Server, settings: Settings) -> None:
    with pytest.raises(DownloadError, match="HTTP 429") as raised:
        get_bytes(f"{server.url}/limited", settings, patience=HASTY)
    assert "wait some minutes" in raised.value.remedy
    with pytest.raises(DownloadError, match="HTTP 500") as raised:
        get_bytes(f"{server.url}/broken", settings, patience=HASTY)
    assert "wait" not in raised.value.remedy
