"""Engines elsewhere: a Docker context, ssh:// or tcp:// with TLS becomes a Unix socket of this process.

Everything else then speaks to one kind of address: docker-py cannot hijack a connection through either.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import ssl
import tempfile
import threading
import weakref
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.errors import EngineError
from builder.process import attach

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.settings import Settings

PIECE = 1 << 16
TLS_PORT = 2376
SECONDS = 20.0
_KEYS = ("ca.pem", "cert.pem", "key.pem")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where an engine is: its address and, for TLS, the folder of `ca.pem`, `cert.pem` and `key.pem`."""

    address: str
    certificates: Path | None = None


def place_of(name: str, settings: Settings) -> Place:
    """Return the place that an address or the name of a Docker context means; raise EngineError for no such context."""
    if "://" in name:
        return Place(address=name, certificates=settings.engine_certificates if name.startswith("tcp://") else None)
    key = sha256(name.encode()).hexdigest()
    folder = settings.docker_config / "contexts"
    try:
        endpoint = json.loads((folder / "meta" / key / "meta.json").read_bytes())["Endpoints"]["docker"]
        address = str(endpoint["Host"])
    except (OSError, ValueError, KeyError, TypeError):
        raise EngineError(
            f"{name} is neither the address of an engine nor a Docker context",
            remedy="give unix://, tcp:// or ssh://, or a name that `docker context ls` shows",
        ) from None
    certificates = folder / "tls" / key / "docker"
    return Place(address=address, certificates=certificates if certificates.is_dir() else None)


def reach(place: Place) -> str:
    """Return an address that needs neither ssh nor TLS: the place's own, or that of a tunnel that lives with us."""
    if place.address.startswith("ssh://"):
        return _tunnel(lambda near: _through_ssh(place.address, near))
    if place.certificates is not None:
        context = _tls(place.certificates)
        return _tunnel(lambda near: _through_tls(place.address, context, near))
    return place.address


def _tunnel(carry: Callable[[socket.socket], None]) -> str:
    """Listen on a private socket and carry every connection away in a thread of its own."""
    folder = tempfile.TemporaryDirectory(prefix="envbuild-engine-")
    path = Path(folder.name) / "docker.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)
    weakref.finalize(listener, folder.cleanup)

    def serve() -> None:
        with contextlib.suppress(OSError), listener:
            while True:
                near, _ = listener.accept()
                threading.Thread(target=carry, args=(near,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return f"unix://{path}"


def _through_ssh(address: str, near: socket.socket) -> None:
    """Let ssh carry one connection, as Docker's own client does; it ends when either side does."""
    parts = urlsplit(address)
    port = ["-p", str(parts.port)] if parts.port else []
    user = ["-l", parts.username] if parts.username else []
    with near:
        attach(
            ["ssh", "-o", "BatchMode=yes", *user, *port, "--", str(parts.hostname), "docker", "system", "dial-stdio"],
            near,
        )


def _tls(folder: Path) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(folder / _KEYS[0]))
        if (folder / _KEYS[1]).is_file():
            context.load_cert_chain(folder / _KEYS[1], folder / _KEYS[2])
    except (OSError, ssl.SSLError) as error:
        raise EngineError(
            f"the certificates in {folder} cannot be used: {error.strerror or error}",
            remedy="DOCKER_CERT_PATH names a folder with ca.pem, cert.pem and key.pem",
        ) from error
    return context


def _through_tls(address: str, context: ssl.SSLContext, near: socket.socket) -> None:
    parts = urlsplit(address)
    host = str(parts.hostname)
    with near, contextlib.suppress(OSError):
        raw = socket.create_connection((host, parts.port or TLS_PORT), SECONDS)
        with context.wrap_socket(raw, server_hostname=host) as far:
            far.settimeout(None)
            _shuttle(near, far)


def _shuttle(near: socket.socket, far: ssl.SSLSocket) -> None:
    """Carry bytes both ways until either side ends; in one thread, for one TLS connection must not be used by two."""
    while True:
        ready = [far] if far.pending() else select.select([near, far], [], [])[0]
        for source, sink in ((near, far), (far, near)):
            if source in ready:
                piece = source.recv(PIECE)
                if not piece:
                    return
                sink.sendall(piece)
