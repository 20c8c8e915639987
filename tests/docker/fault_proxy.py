"""A proxy before a registry that misbehaves as it is told, request by request, and may ask for tokens that run out."""

from __future__ import annotations

import http.client
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

How = Literal[
    "answer", "reset", "cut request", "cut answer", "lose answer", "corrupt request", "corrupt answer", "slow"
]
NOT_PASSED = {"transfer-encoding", "connection", "authorization"}


@dataclass(kw_only=True)
class Fault:
    """What happens to the next `times` requests of a method to a path."""

    method: str
    path: str
    how: How = "answer"
    times: int = 1
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""


class FaultProxy(ThreadingHTTPServer):
    """Passes requests on to `target`; with `token_uses` only those with a token, each of which serves so many."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, target: str, *, token_uses: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self.token_uses = token_uses
        self.tokens: dict[str, int] = {}
        self.faults: list[Fault] = []
        self.met = 0
        self.lock = threading.Lock()

    def fault_for(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.method == method and fault.times > 0 and re.search(fault.path, path):
                    fault.times -= 1
                    self.met += 1
                    return fault
        return None


@contextmanager
def fault_proxy(target: str, *faults: Fault, token_uses: int = 0) -> Iterator[FaultProxy]:
    """Run a proxy before the registry at `target`."""
    proxy = FaultProxy(target, token_uses=token_uses)
    proxy.faults += faults
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FaultProxy

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def do_GET(self) -> None:
        if self.path.startswith("/token"):
            self._token()
            return
        fault = self.server.fault_for(self.command, self.path)
        if fault is not None and fault.how == "cut request":
            self.rfile.read(int(self.headers.get("Content-Length") or 0) // 2)
            self._reset()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.token_uses and not self._has_token():
            realm = f'Bearer realm="http://{self.server.host}/token",service="tests"'
            self._send(401, {"WWW-Authenticate": realm}, b"{}")
        elif fault is None:
            self._send(*self._passed(body))
        else:
            self._misbehave(fault, body)

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - names of http.server

    def log_message(self, *_: object) -> None:
        pass

    def _misbehave(self, fault: Fault, body: bytes) -> None:
        match fault.how:
            case "answer":
                self._send(fault.status, fault.headers, fault.body.encode())
            case "reset" | "cut request":
                self._reset()
            case "lose answer":
                self._passed(body)
                self._reset()
            case "cut answer":
                self._send(*self._passed(body), cut=True)
            case "corrupt request":
                self._send(*self._passed(body[:-1] + bytes([body[-1] ^ 1]) if body else body))
            case "corrupt answer":
                status, headers, answer = self._passed(body)
                self._send(status, headers, answer[:-1] + bytes([answer[-1] ^ 1]) if answer else answer)
            case "slow":
                time.sleep(0.5)
                self._send(*self._passed(body))

    def _passed(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        host, _, port = self.server.target.partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in NOT_PASSED}
        connection.request(self.command, self.path, body=body or None, headers=headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return (
            answer.status,
            {name: value for name, value in answer.getheaders() if name.lower() not in NOT_PASSED},
            data,
        )

    def _send(self, status: int, headers: Mapping[str, str], body: bytes, *, cut: bool = False) -> None:
        self.send_response_only(status)
        length = {} if any(name.lower() == "content-length" for name in headers) else {"Content-Length": str(len(body))}
        for name, value in {**headers, **length}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = self.close_connection or cut

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True
        raise ConnectionResetError

    def _token(self) -> None:
        with self.server.lock:
            token = f"token-{len(self.server.tokens)}"
            self.server.tokens[token] = self.server.token_uses
        self._send(200, {}, json.dumps({"token": token, "expires_in": 300}).encode())

    def _has_token(self) -> bool:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        with self.server.lock:
            left = self.server.tokens.get(token, 0)
            self.server.tokens[token] = left - 1
        return left > 0
