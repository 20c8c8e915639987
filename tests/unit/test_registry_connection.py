"""Connections: encrypted unless the user says otherwise, trusted by the user's bundle, through the user's proxy."""

from __future__ import annotations

import socket
import ssl
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from builder.download import Patience
from builder.errors import RegistryError
from builder.registry.client import RegistryClient
from builder.registry.reference import Repository
from builder.settings import settings_from
from tests.fake_registry import FakeRegistry, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HASTY = Patience(attempts=2, pause=0.0, silence=5.0)
NAME = "registry.test"


@pytest.fixture(autouse=True)
def _resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the name of the tests' registry be this machine."""
    resolve = socket.getaddrinfo

    def answer(host: Any, *rest: Any, **named: Any) -> Any:
        return resolve("127.0.0.1" if host == NAME else host, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "requests_ca_bundle", "curl_ca_bundle"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for the tests' registry, which is its own authority, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}", "-days", "2"]
    subprocess.run([*command, "-keyout", "key.pem", "-out", "cert.pem"], cwd=folder, check=True, capture_output=True)
    (folder / "both.pem").write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return folder / "both.pem"


@pytest.fixture
def encrypted(certificate: Path) -> Iterator[FakeRegistry]:
    registry = FakeRegistry()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    registry.socket = context.wrap_socket(registry.socket, server_side=True)
    with running(registry):
        yield registry


@pytest.fixture
def plain() -> Iterator[FakeRegistry]:
    with running(FakeRegistry()) as registry:
        yield registry


def named(registry: FakeRegistry) -> Repository:
    return Repository(registry=f"{NAME}:{registry.server_address[1]}", name="a/b")


def look(repository: Repository, **environment: str) -> None:
    settings = settings_from({"DOCKER_CONFIG": "/nonexistent", **environment})
    with RegistryClient(settings, patience=HASTY) as client:
        assert client.find(repository.at("1")) is None


def test_the_users_bundle_makes_a_registry_trusted(encrypted: FakeRegistry, certificate: Path) -> None:
    look(named(encrypted), REQUESTS_CA_BUNDLE=str(certificate))
    assert encrypted.log == ["HEAD /v2/a/b/manifests/1"]


def test_a_certificate_that_nobody_vouches_for_is_refused(encrypted: FakeRegistry) -> None:
    with pytest.raises(RegistryError, match=rf"certificate of {NAME}:\d+ is not trusted") as caught:
        look(named(encrypted))
    assert "REQUESTS_CA_BUNDLE" in caught.value.remedy
    assert encrypted.log == []


def test_a_bundle_that_is_missing_is_named(encrypted: FakeRegistry) -> None:
    with pytest.raises(RegistryError, match=r"/none\.pem"):
        look(named(encrypted), REQUESTS_CA_BUNDLE="/none.pem")


def test_a_registry_without_encryption_needs_the_users_word(plain: FakeRegistry) -> None:
    repository = named(plain)
    with pytest.raises(RegistryError, match="does not speak https") as caught:
        look(repository)
    assert caught.value.remedy.endswith(f"set ENVBUILD_INSECURE_REGISTRIES={repository.registry}")
    assert plain.log == []
    look(repository, ENVBUILD_INSECURE_REGISTRIES=f"other.example, {repository.registry}")
    assert plain.log == ["HEAD /v2/a/b/manifests/1"]


def test_a_registry_is_reached_through_the_users_proxy(plain: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://{plain.host}")
    repository = Repository(registry="far.example", name="a/b")
    look(repository, ENVBUILD_INSECURE_REGISTRIES="far.example")
    assert plain.log == ["HEAD http://far.example/v2/a/b/manifests/1"]


def test_this_machine_is_reached_without_a_proxy(plain: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    look(Repository(registry=plain.host, name="a/b"))
    assert plain.log == ["HEAD /v2/a/b/manifests/1"]
