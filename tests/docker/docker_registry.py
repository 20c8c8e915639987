"""Debian's docker-registry, started by the tests on this machine, and a proxy before it that breaks connections."""

from __future__ import annotations

import contextlib
import math
import shutil
import socket
import struct
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIG = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}, delete: {{enabled: true}}}}
http: {{addr: "{host}", secret: of the tests}}
{auth}
"""
AUTH = "auth: {{htpasswd: {{realm: tests, path: {folder}/htpasswd}}}}"
USER, PASSWORD = "someone", "s3cret-pass"
HTPASSWD = "someone:$2y$05$abcdefghijklmnopqrstuuV7fpPozvyqJfnY19y0802WTlXUm6Rjy\n"  # bcrypt of PASSWORD


@contextlib.contextmanager
def docker_registry(folder: Path, *, login: bool = False) -> Iterator[str]:
    """Run a registry that keeps its data in `folder`, and give its `host:port`."""
    program = shutil.which("docker-registry")
    assert program is not None, "this test needs the program docker-registry: run `make setup`"
    folder.mkdir(parents=True, exist_ok=True)
    host = f"127.0.0.1:{_free_port()}"
    (folder / "htpasswd").write_text(HTPASSWD)
    auth = AUTH.format(folder=folder) if login else ""
    (folder / "config.yml").write_text(CONFIG.format(folder=folder, host=host, auth=auth))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(folder / "config.yml")], stdout=log, stderr=log)
        try:
            _wait_for(host, process, folder / "log")
            yield host
        finally:
            process.terminate()
            process.wait(10)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(host: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        assert process.poll() is None, log.read_text()
        try:
            urlopen(f"http://{host}/v2/", timeout=5).close()
        except HTTPError as error:
            error.close()
        except (URLError, ConnectionError):
            time.sleep(0.05)
            continue
        return
    raise AssertionError(log.read_text())


@dataclass
class BreakingProxy:
    """Passes bytes on to `target`; breaks the first `breaks` connections that carry more than `after` bytes there.

    Once `lifetime` bytes have passed in all, nothing passes any more.
    """

    target: str
    after: int
    breaks: int
    lifetime: float = math.inf
    broken: int = 0
    passed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                if self.passed > self.lifetime:
                    _reset(near)
                    continue
                host, _, port = self.target.partition(":")
                far = socket.create_connection((host, int(port)))
                threading.Thread(target=self._there, args=(near, far), daemon=True).start()
                threading.Thread(target=self._back, args=(far, near), daemon=True).start()

    def _there(self, near: socket.socket, far: socket.socket) -> None:
        passed = 0
        with contextlib.suppress(OSError), near, far:
            while data := near.recv(1 << 16):
                far.sendall(data)
                passed += len(data)
                if self._may_break(passed, len(data)):
                    for end in (near, far):
                        _reset(end)
                    return

    def _back(self, far: socket.socket, near: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(1 << 16):
                near.sendall(data)
            near.shutdown(socket.SHUT_WR)

    def _may_break(self, passed: int, more: int) -> bool:
        with self.lock:
            self.passed += more
            if self.passed > self.lifetime:
                return True
            if passed <= self.after or self.broken >= self.breaks:
                return False
            self.broken += 1
            return True


def _reset(end: socket.socket) -> None:
    """Break a connection as a machine does that is gone."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RD)
    end.close()


@contextlib.contextmanager
def breaking_proxy(
    target: str, *, after: int = 0, breaks: int = 0, lifetime: float = math.inf
) -> Iterator[tuple[str, BreakingProxy]]:
    """Run a proxy before `target` and give its `host:port`."""
    proxy = BreakingProxy(target=target, after=after, breaks=breaks, lifetime=lifetime)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=proxy.serve, args=(listener,), daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", proxy
        listener.shutdown(socket.SHUT_RDWR)
