"""Engines elsewhere: through ssh, through TLS, by the name of a Docker context."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from builder.dockerd.reach import Place, place_of, reach
from builder.errors import EngineError
from builder.settings import settings_from

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ECHO = """\
#!{python}
import os, sys
open({note!r}, "w").write(" ".join(sys.argv[1:]))
while data := os.read(0, 65536):
    os.write(1, data.upper())
"""


def exchange(address: str, data: bytes) -> bytes:
    """Send bytes through an address and return as many that come back, fewer where the connection ends."""
    with socket.socket(socket.AF_UNIX) as near:
        near.settimeout(20)
        near.connect(address.removeprefix("unix://"))
        near.sendall(data)
        back = b""
        with contextlib.suppress(ConnectionResetError):
            while len(back) < len(data) and (piece := near.recv(65536)):
                back += piece
        return back


def ask(address: str, data: bytes) -> bytes:
    """Send bytes through an address, end the sending, and return all that comes back."""
    with socket.socket(socket.AF_UNIX) as near:
        near.settimeout(20)
        near.connect(address.removeprefix("unix://"))
        near.sendall(data)
        near.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: near.recv(65536), b""))


def test_ssh_carries_each_connection_to_the_engine_of_the_other_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, note = tmp_path / "ssh", str(tmp_path / "note")
    program.write_text(ECHO.format(python=sys.executable, note=note))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    address = reach(Place(address="ssh://me@builder:2222"))
    assert ask(address, b"one") == b"ONE"
    assert ask(address, b"two" * 100_000) == b"TWO" * 100_000
    assert (tmp_path / "note").read_text() == "-o BatchMode=yes -l me -p 2222 -- builder docker system dial-stdio"


def test_an_address_that_begins_like_an_option_is_none_for_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, note = tmp_path / "ssh", str(tmp_path / "note")
    program.write_text(ECHO.format(python=sys.executable, note=note))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    ask(reach(Place(address="ssh://-oProxyCommand=evil")), b"x")
    assert "-- -oproxycommand=evil docker" in (tmp_path / "note").read_text()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as Docker wants it, for a server and a client that are called localhost."""
    folder = tmp_path_factory.mktemp("certificates")
    openssl = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*openssl, *names, *files], check=True, capture_output=True)
    (folder / "ca.pem").write_bytes((folder / "cert.pem").read_bytes())
    return folder


@contextlib.contextmanager
def tls_server(folder: Path) -> Iterator[int]:
    """Answer each connection in capitals, to clients with the right certificate only; give the port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    def serve() -> None:
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                return
            try:
                with raw, context.wrap_socket(raw, server_side=True) as far:
                    while data := far.recv(65536):
                        far.sendall(data.upper())
            except OSError:
                continue

    with socket.create_server(("localhost", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_tls_is_spoken_with_the_certificates_of_the_folder(certificates: Path) -> None:
    with tls_server(certificates) as port:
        address = reach(Place(address=f"tcp://localhost:{port}", certificates=certificates))
        assert exchange(address, b"hello") == b"HELLO"
        assert exchange(address, b"again" * 50_000) == b"AGAIN" * 50_000


def test_a_server_that_the_folder_does_not_know_gets_nothing(certificates: Path, tmp_path: Path) -> None:
    other = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "ca.pem"), "-subj", "/CN=other"]
    subprocess.run([*other, *files], check=True, capture_output=True)
    with tls_server(certificates) as port:
        assert exchange(reach(Place(address=f"tcp://localhost:{port}", certificates=tmp_path)), b"hello") == b""


def test_a_folder_without_certificates_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=f"the certificates in {tmp_path} cannot be used"):
        reach(Place(address="tcp://localhost:1", certificates=tmp_path))


def test_a_context_gives_its_address_and_its_certificates(tmp_path: Path) -> None:
    key = sha256(b"far").hexdigest()
    meta, tls = tmp_path / "contexts" / "meta" / key, tmp_path / "contexts" / "tls" / key / "docker"
    meta.mkdir(parents=True)
    tls.mkdir(parents=True)
    (meta / "meta.json").write_text(json.dumps({"Name": "far", "Endpoints": {"docker": {"Host": "tcp://far:2376"}}}))
    settings = settings_from({"DOCKER_CONFIG": str(tmp_path)})
    assert place_of("far", settings) == Place(address="tcp://far:2376", certificates=tls)
    with pytest.raises(EngineError, match="near is neither the address of an engine nor a Docker context"):
        place_of("near", settings)


def test_the_variables_of_docker_choose_the_certificates_of_a_tcp_address(tmp_path: Path) -> None:
    asked = settings_from({"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(tmp_path)})
    assert place_of("tcp://far:2376", asked).certificates == tmp_path
    assert place_of("tcp://far:2375", settings_from({})).certificates is None
    assert place_of("unix:///x.sock", asked).certificates is None
