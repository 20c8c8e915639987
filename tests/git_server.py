"""A git server on this machine: `git http-backend` behind TLS, with a certificate authority of its own."""

from __future__ import annotations

import base64
import os
import ssl
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USER, PASSWORD = "someone", "s3cret-pass"


@dataclass(kw_only=True)
class GitServer:
    """`url` is its root, `authority` the file with the certificate that vouches for it; `asked` are the paths."""

    url: str
    authority: Path
    asked: list[str] = field(default_factory=list)


@contextmanager
def serve_git(root: Path, folder: Path, *, login: bool = False) -> Iterator[GitServer]:
    """Serve the repositories below `root` until the end of the block; certificates are made in `folder`."""
    authority, certificate, key = _certificates(folder)

    class Handler(_Handler):
        repositories = root
        closed = login
        asked: list[str]

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        made = GitServer(url=f"https://127.0.0.1:{server.server_address[1]}", authority=authority)
        Handler.asked = made.asked
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        server.shutdown()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    repositories: Path
    closed: bool
    asked: list[str]

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self._body())

    def log_message(self, *_: object) -> None:
        pass

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        return b"".join(pieces)

    def _answer(self, body: bytes) -> None:
        path, _, query = self.path.partition("?")
        self.asked.append(path)
        expected = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.closed and self.headers.get("Authorization") != f"Basic {expected}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="tests"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        environment = {
            "GIT_PROJECT_ROOT": str(self.repositories),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        ended = subprocess.run(
            ["git", "http-backend"], input=body, env=os.environ | environment, capture_output=True, check=True
        )
        head, _, answer = ended.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def _certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Make an authority and a certificate for this machine; return both and the key."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, certificate, request = folder / "ca.pem", folder / "server.pem", folder / "server.csr"
    key, names = folder / "server.key", folder / "names"
    names.write_text("subjectAltName=IP:127.0.0.1\n")
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    sign = ["openssl", "x509", "-req", "-days", "2", "-CAcreateserial", "-CA", authority, "-CAkey", folder / "ca.key"]
    for command in (
        [*new, "-x509", "-days", "2", "-subj", "/CN=tests", "-keyout", folder / "ca.key", "-out", authority],
        [*new, "-subj", "/CN=server", "-keyout", key, "-out", request],
        [*sign, "-in", request, "-extfile", names, "-out", certificate],
    ):
        subprocess.run([str(word) for word in command], check=True, capture_output=True)
    return authority, certificate, key
