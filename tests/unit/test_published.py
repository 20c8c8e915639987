"""Images to a registry and back: the same value on the other side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from builder.build.image import ImageSettings, assemble
from builder.build.published import pull_image, push_image
from builder.build.uses import published_locks
from builder.download import Patience
from builder.errors import InvalidDocumentError, RegistryError
from builder.registry.client import RegistryClient
from builder.registry.content import OCI_INDEX, OCI_MANIFEST, Payload
from builder.registry.reference import Repository
from builder.settings import settings_from
from builder.store import Store
from tests.fake_registry import FakeRegistry, running
from tests.registry_image import make_image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BASE = {"base": b"1" * 5000}


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with running(FakeRegistry()) as server:
        yield server


@pytest.fixture
def client(tmp_path: Path) -> Iterator[RegistryClient]:
    patience = Patience(attempts=2, pause=0.0, silence=5.0)
    with RegistryClient(settings_from({"DOCKER_CONFIG": str(tmp_path)}), patience=patience) as client:
        yield client


@pytest.fixture
def repository(registry: FakeRegistry) -> Repository:
    return Repository(registry=registry.host, name="team/stack")


def test_an_image_comes_back_as_it_was(client: RegistryClient, repository: Repository, tmp_path: Path) -> None:
    store, other = Store(tmp_path / "one"), Store(tmp_path / "two")
    image = make_image(store, BASE, {"b": b"2"})
    pushed = push_image(image, repository.at("1"), store, client)
    assert pushed.digest == image.manifest_digest
    assert pull_image(repository.at(pushed.digest), other, client) == image
    assert pull_image(repository.at("1"), other, client) == image


def test_the_lock_of_a_pushed_image_is_noted(client: RegistryClient, repository: Repository, tmp_path: Path) -> None:
    store = Store(tmp_path / "one")
    push_image(make_image(store, BASE), repository.at("1"), store, client)
    assert list(published_locks(store)) == []
    labelled = assemble(make_image(store, BASE).layers, ImageSettings(epoch=0, labels={"dev.envbuild.lock": "ab"}))
    push_image(labelled, repository.at("2"), store, client)
    assert list(published_locks(store)) == ["ab"]


def test_an_image_that_shares_its_base_sends_only_what_is_new(
    client: RegistryClient, repository: Repository, tmp_path: Path
) -> None:
    store = Store(tmp_path / "one")
    push_image(make_image(store, BASE, {"b": b"2"}), repository.at("1"), store, client)
    second = make_image(store, BASE, {"b": b"3"})
    sent = push_image(second, repository.at("2"), store, client).sent
    assert sent == second.layers[1].blob.size + len(second.config) + len(second.manifest)


def test_of_an_image_for_several_platforms_ours_is_taken(
    client: RegistryClient, repository: Repository, tmp_path: Path
) -> None:
    store = Store(tmp_path / "one")
    image = make_image(store, BASE)
    push_image(image, repository.at("1"), store, client)
    entry = {"mediaType": OCI_MANIFEST, "digest": image.manifest_digest, "size": len(image.manifest)}
    other = {**entry, "digest": f"sha256:{'0' * 64}", "platform": {"os": "linux", "architecture": "arm64"}}
    ours = {**entry, "platform": {"os": "linux", "architecture": "amd64"}}
    index = json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [other, ours]}).encode()
    client.put_manifest(repository.at("many"), index, OCI_INDEX)
    assert pull_image(repository.at("many"), store, client) == image
    with pytest.raises(RegistryError, match=r"has no image for linux/riscv64"):
        pull_image(repository.at("many"), store, client, architecture="riscv64")


@pytest.mark.parametrize(
    ("config", "said"), [(b"{}", "is not that of an image"), (b'{"rootfs":{"diff_ids":[]}}', "its config names 0")]
)
def test_a_config_that_is_none_is_refused(
    config: bytes, said: str, client: RegistryClient, repository: Repository, tmp_path: Path
) -> None:
    store = Store(tmp_path / "one")
    image = make_image(store, BASE)
    push_image(image, repository.at("1"), store, client)
    manifest = json.loads(image.manifest)
    client.push_blob(repository, Payload.of(config))
    manifest["config"] |= {"digest": Payload.of(config).digest, "size": len(config)}
    client.put_manifest(repository.at("2"), json.dumps(manifest).encode(), OCI_MANIFEST)
    with pytest.raises(InvalidDocumentError, match=said):
        pull_image(repository.at("2"), Store(tmp_path / "two"), client)


def test_a_layer_that_nobody_here_can_unpack_is_named(
    client: RegistryClient, repository: Repository, tmp_path: Path
) -> None:
    store = Store(tmp_path / "one")
    image = make_image(store, BASE)
    push_image(image, repository.at("1"), store, client)
    text = image.manifest.replace(b"layer.v1.tar+gzip", b"layer.v1.tar+brotli")
    client.put_manifest(repository.at("2"), text, OCI_MANIFEST)
    with pytest.raises(InvalidDocumentError, match=r"brotli, which cannot be unpacked here"):
        pull_image(repository.at("2"), Store(tmp_path / "two"), client)
