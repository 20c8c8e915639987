"""A registry in a thread that keeps what it is given and misbehaves as it is told, request by request."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import struct
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qs, parse_qsl, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

INDEX = "application/vnd.oci.image.index.v1+json"
PULLED = re.compile(r"/v2/(?P<repo>.+)/(?P<kind>manifests|blobs|tags|referrers)/(?P<name>[^?]+)")

How = Literal["answer", "reset", "cut request", "cut answer", "corrupt", "dribble", "forget", "silent"]


@dataclass(kw_only=True)
class Fault:
    """What happens to the next `times` requests of a method to a path; `count` are bytes, or seconds of silence."""

    method: str
    path: str
    how: How = "answer"
    times: int = 1
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    count: int = 0
    before: Callable[[], object] | None = None


@dataclass(kw_only=True)
class Account:
    """Who may come in: `user` with `password`, by basic login or with a token that serves `uses` requests."""

    scheme: Literal["basic", "bearer"]
    user: str = "someone"
    password: str = "s3cret-pass"
    identity_token: str = "s3cret-identity"
    uses: int = 1_000_000
    life: int = 300


class FakeRegistry(ThreadingHTTPServer):
    """`blobs` and `manifests` are by repository and name; `log` has every request as `METHOD /path?query`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *, account: Account | None = None, referrers: bool = False, mounts: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self.account = account
        self.referrers = referrers
        self.mounts = mounts
        self.lock = threading.RLock()
        self.blobs: dict[str, dict[str, bytes]] = {}
        self.manifests: dict[str, dict[str, tuple[str, bytes]]] = {}
        self.uploads: dict[str, bytearray] = {}
        self.faults: list[Fault] = []
        self.log: list[str] = []
        self.authorizations: list[str | None] = []
        self.tokens: dict[str, int] = {}
        self.token_requests: list[dict[str, list[str]]] = []
        self.page = 0

    def add_blob(self, repo: str, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs.setdefault(repo, {})[digest] = data
        return digest

    def asked(self, pattern: str) -> list[str]:
        """The requests that match."""
        return [line for line in self.log if re.search(pattern, line)]

    def fault_for(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.method == method and re.search(fault.path, path):
                    fault.times -= 1
                    if fault.times <= 0:
                        self.faults.remove(fault)
                    return fault
        return None


@contextmanager
def running(registry: FakeRegistry) -> Iterator[FakeRegistry]:
    thread = threading.Thread(target=registry.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        registry.shutdown()
        registry.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FakeRegistry
    fault: Fault | None = None

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_PUT = do_PATCH = do_GET  # noqa: N815 - names of http.server

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self) -> None:
        self.parts = urlsplit(self.path)
        self.query = dict(parse_qsl(self.parts.query))
        with self.server.lock:
            self.server.log.append(f"{self.command} {self.path}")
            self.server.authorizations.append(self.headers.get("Authorization"))
        if self.parts.path == "/token":
            self._token()
            return
        if self.server.account is not None and not self._is_known():
            self._body()
            self._challenge()
            return
        self.fault = self.server.fault_for(self.command, self.path)
        if self.fault is None or not self._misbehave(self.fault):
            self._answer()

    def _misbehave(self, fault: Fault) -> bool:
        """Do what the fault says; False: go on with the true answer."""
        if fault.before is not None:
            fault.before()
        if fault.how == "answer":
            if fault.before is not None:
                return False
            self._body()
            self._send(fault.status, fault.body.encode(), fault.headers)
        elif fault.how == "reset":
            self._reset()
        elif fault.how == "cut request":
            self._keep(self.rfile.read(fault.count))
            self._reset()
        elif fault.how == "forget":
            self.server.uploads.pop(self._upload_id(), None)
            return False
        elif fault.how == "silent":
            time.sleep(fault.count)
            self.close_connection = True
        else:
            return False
        return True

    def _reset(self) -> None:
        """End the connection with a reset instead of an answer."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True
        raise ConnectionResetError

    def _answer(self) -> None:
        path = self.parts.path
        if "/blobs/uploads/" in path:
            getattr(self, f"_upload_{self.command.lower()}")(path.split("/v2/")[1].split("/blobs/uploads/")[0])
            return
        found = PULLED.fullmatch(path)
        assert found is not None, path
        getattr(self, f"_{found['kind']}")(found["repo"], found["name"])

    # what is there

    def _blobs(self, repo: str, name: str) -> None:
        data = self.server.blobs.get(repo, {}).get(name)
        if data is None:
            self._error(404, "BLOB_UNKNOWN", "blob unknown to registry")
            return
        wanted = self.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if wanted else {}
        self._send(206 if wanted else 200, data[start:], headers)

    def _manifests(self, repo: str, name: str) -> None:
        if self.command == "PUT":
            self._put_manifest(repo, name)
            return
        found = self.server.manifests.get(repo, {}).get(name)
        if found is None:
            self._error(404, "MANIFEST_UNKNOWN", "manifest unknown")
            return
        digest = f"sha256:{hashlib.sha256(found[1]).hexdigest()}"
        self._send(200, found[1], {"Content-Type": found[0], "Docker-Content-Digest": digest})

    def _put_manifest(self, repo: str, name: str) -> None:
        data = self._body()
        plain = json.loads(data)
        kept = self.server.blobs.get(repo, {})
        for blob in [*plain.get("layers", []), *([plain["config"]] if "config" in plain else [])]:
            if blob["digest"] not in kept:
                self._error(400, "MANIFEST_BLOB_UNKNOWN", f"blob unknown: {blob['digest']}")
                return
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        with self.server.lock:
            for key in (name, digest):
                self.server.manifests.setdefault(repo, {})[key] = (self.headers["Content-Type"], data)
        subject = {"OCI-Subject": plain["subject"]["digest"]} if self.server.referrers and "subject" in plain else {}
        self._send(201, b"", {"Location": f"/v2/{repo}/manifests/{digest}", "Docker-Content-Digest": digest, **subject})

    def _tags(self, repo: str, _: str) -> None:
        tags = sorted(name for name in self.server.manifests.get(repo, {}) if not name.startswith("sha256:"))
        start = int(self.query.get("last", "0"))
        page = self.server.page or len(tags) or 1
        more = f'</v2/{repo}/tags/list?last={start + page}>; rel="next"' if start + page < len(tags) else ""
        body = json.dumps({"name": repo, "tags": tags[start : start + page]}).encode()
        self._send(200, body, {"Link": more} if more else {})

    def _referrers(self, repo: str, digest: str) -> None:
        if not self.server.referrers:
            self._send(404, b"404 page not found")
            return
        listed = []
        for name, (media_type, data) in self.server.manifests.get(repo, {}).items():
            plain = json.loads(data)
            if name.startswith("sha256:") and plain.get("subject", {}).get("digest") == digest:
                entry = {"mediaType": media_type, "digest": name, "size": len(data)}
                listed.append({**entry, "artifactType": plain["artifactType"], "annotations": plain["annotations"]})
        self._send(200, json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": listed}).encode())

    # uploads

    def _upload_post(self, repo: str) -> None:
        self._body()
        wanted, source = self.query.get("mount", ""), self.query.get("from", "")
        data = self.server.blobs.get(source, {}).get(wanted)
        if data is not None and self.server.mounts:
            self.server.add_blob(repo, data)
            self._send(201, b"", {"Location": f"/v2/{repo}/blobs/{wanted}"})
            return
        with self.server.lock:
            name = f"upload-{len(self.server.uploads)}"
            self.server.uploads[name] = bytearray()
        self._progress(202, repo)

    def _upload_patch(self, repo: str) -> None:
        upload = self.server.uploads.get(self._upload_id())
        start = int(self.headers["Content-Range"].split("-")[0])
        data = self._body()
        if upload is None:
            self._error(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry")
        elif start != len(upload):
            self._send(416, b"")
        else:
            upload += data
            self._progress(202, repo)

    def _upload_get(self, repo: str) -> None:
        if self._upload_id() in self.server.uploads:
            self._progress(204, repo)
        else:
            self._error(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry")

    def _upload_put(self, repo: str) -> None:
        upload = self.server.uploads.get(self._upload_id())
        data = self._body()
        if upload is None:
            self._error(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry")
            return
        upload += data
        digest = f"sha256:{hashlib.sha256(upload).hexdigest()}"
        if digest != self.query["digest"]:
            self._error(400, "DIGEST_INVALID", "provided digest did not match uploaded content")
            return
        self.server.add_blob(repo, bytes(upload))
        self._send(201, b"", {"Location": f"/v2/{repo}/blobs/{digest}", "Docker-Content-Digest": digest})

    def _upload_id(self) -> str:
        return self.parts.path.rpartition("/")[2] or f"upload-{len(self.server.uploads) - 1}"

    def _progress(self, status: int, repo: str) -> None:
        name = self._upload_id()
        size = len(self.server.uploads[name])
        location = f"/v2/{repo}/blobs/uploads/{name}?_state=s3cret-state-{size}"
        self._send(status, b"", {"Location": location, "Range": f"0-{max(size - 1, 0)}"})

    def _keep(self, data: bytes) -> None:
        self.server.uploads[self._upload_id()] += data

    # who is there

    def _is_known(self) -> bool:
        account, header = self.server.account, self.headers.get("Authorization", "")
        assert account is not None
        if account.scheme == "basic":
            return header == _basic(account)
        with self.server.lock:
            token = header.removeprefix("Bearer ")
            left = self.server.tokens.get(token, 0)
            if left:
                self.server.tokens[token] = left - 1
        return left > 0

    def _challenge(self) -> None:
        assert self.server.account is not None
        realm = f"http://{self.server.host}/token"
        bearer = f'Bearer realm="{realm}",service="fake",scope="repository:any:pull"'
        header = bearer if self.server.account.scheme == "bearer" else 'Basic realm="fake"'
        self._error(401, "UNAUTHORIZED", "authentication required", {"WWW-Authenticate": header})

    def _token(self) -> None:
        account = self.server.account
        assert account is not None
        form = parse_qs(self._body().decode()) if self.command == "POST" else parse_qs(self.parts.query)
        fault = self.server.fault_for(self.command, self.path)
        if fault is not None:
            self._send(fault.status, fault.body.encode(), fault.headers)
            return
        by_form = form.get("refresh_token") == [account.identity_token]
        if not by_form and self.headers.get("Authorization") != _basic(account):
            self._send(401, b"{}")
            return
        with self.server.lock:
            self.server.token_requests.append(form)
            token = f"s3cret-token-{len(self.server.tokens)}"
            self.server.tokens[token] = account.uses
        self._send(200, json.dumps({"token": token, "expires_in": account.life}).encode())

    # bytes

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _error(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        self._send(status, json.dumps({"errors": [{"code": code, "message": message}]}).encode(), headers)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        fault, self.fault = self.fault, None
        dropped = (fault.headers if fault else {}).get("without", "")
        self.send_response(status)
        for name, value in (headers or {}).items():
            if name != dropped:
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault and fault.how == "corrupt":
            body = bytes([body[0] ^ 1]) + body[1:]
        if fault and fault.how == "cut answer":
            self.wfile.write(body[: fault.count])
            self.close_connection = True
            return
        if fault and fault.how == "dribble":
            for byte in body:
                self.wfile.write(bytes([byte]))
                time.sleep(0.01)
            return
        self.wfile.write(body)


def _basic(account: Account) -> str:
    return "Basic " + base64.b64encode(f"{account.user}:{account.password}".encode()).decode()
