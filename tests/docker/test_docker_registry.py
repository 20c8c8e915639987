"""The client and a real registry, Debian's: what is pushed can be pulled by it, by us and by the engine."""

from __future__ import annotations

import base64
import json
import random
import uuid
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import docker
import pytest

from builder.build.image import ImageSettings, Layer, assemble
from builder.build.layers import make_base_layer
from builder.build.published import pull_image, push_image
from builder.build.tarlayer import File, Member, write_layer
from builder.build.wheels import SHARED
from builder.download import Patience
from builder.engine import ContainerRun
from builder.errors import RegistryError
from builder.registry import upload
from builder.registry.client import RegistryClient
from builder.registry.content import OCI_MANIFEST, Descriptor, Payload
from builder.registry.reference import Reference, Repository
from builder.registry.referrers import Attachment, attach, list_referrers
from builder.registry.share import open_share
from builder.settings import settings_from
from builder.store import Store
from tests.docker.docker_registry import PASSWORD, USER, breaking_proxy, docker_registry
from tests.registry_image import make_image
from tests.tiny_image import tiny_layer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from builder.dockerd.client import DockerEngine

NOISE = random.Random(1).randbytes(3 << 20)
KEY = "0123456789abcdef" * 4


@pytest.fixture
def repository(host: str) -> Repository:
    return Repository(registry=host, name=f"tests/{uuid.uuid4().hex}")


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[[], RegistryClient]]:
    patience = Patience(attempts=5, pause=0.01, silence=20.0, parallel=4)
    clients: list[RegistryClient] = []

    def make() -> RegistryClient:
        clients.append(RegistryClient(settings_from({"DOCKER_CONFIG": str(tmp_path)}), patience=patience))
        return clients[-1]

    yield make
    for client in clients:
        client.__exit__()


@pytest.fixture
def client(connect: Callable[[], RegistryClient]) -> RegistryClient:
    return connect()


def test_an_image_is_pushed_in_chunks_and_pulled_as_it_was(
    client: RegistryClient, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "MONOLITHIC", 1 << 20)
    monkeypatch.setattr(upload, "CHUNK", 1 << 20)
    store = Store(tmp_path / "one")
    image = make_image(store, {"small": b"1"}, {"large": NOISE})
    pushed = push_image(image, repository.at("1"), store, client)
    assert pushed.digest == image.manifest_digest
    sizes = sum(layer.blob.size for layer in image.layers)
    assert pushed.sent == sizes + len(image.config) + len(image.manifest)
    assert pull_image(repository.at(pushed.digest), Store(tmp_path / "two"), client) == image
    assert push_image(image, repository.at("2"), store, client).sent == len(image.manifest)


def test_another_repository_gets_its_blobs_from_the_first(
    client: RegistryClient, repository: Repository, tmp_path: Path
) -> None:
    store = Store(tmp_path / "one")
    image = make_image(store, {"large": NOISE})
    push_image(image, repository.at("1"), store, client)
    target = Repository(registry=repository.registry, name=f"{repository.name}/promoted")
    pushed = push_image(image, target.at("1"), store, client, sources=[repository])
    assert pushed.sent == len(image.manifest)
    assert pull_image(target.at("1"), Store(tmp_path / "two"), client) == image


def test_a_connection_that_breaks_in_a_chunk_does_not_break_the_push(
    client: RegistryClient, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This registry forgets an upload whose request broke, so it begins again."""
    monkeypatch.setattr(upload, "MONOLITHIC", 64 << 10)
    store = Store(tmp_path / "one")
    image = make_image(store, {"large": NOISE})
    with breaking_proxy(host, after=1 << 20, breaks=2) as (broken, proxy):
        repository = Repository(registry=broken, name=f"tests/{uuid.uuid4().hex}")
        push_image(image, repository.at("1"), store, client)
        assert proxy.broken == 2
    straight = Repository(registry=host, name=repository.name)
    assert pull_image(straight.at("1"), Store(tmp_path / "two"), client) == image


def test_a_push_whose_registry_goes_away_ends_and_the_next_one_sends_only_what_is_missing(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest blob arrives, the second breaks in its middle. This registry cannot go on with that one."""
    monkeypatch.setattr(upload, "MONOLITHIC", 64 << 10)
    store, name = Store(tmp_path / "one"), f"tests/{uuid.uuid4().hex}"
    more = random.Random(2).randbytes(2 << 20)
    image = make_image(store, {"small": b"1"}, {"large": NOISE}, {"second": more})
    small, large, second = (layer.blob.size for layer in image.layers)
    one_by_one = Patience(attempts=2, pause=0.0, silence=20.0, parallel=1)
    settings = settings_from({"DOCKER_CONFIG": str(tmp_path)})
    straight = Repository(registry=host, name=name)
    with RegistryClient(settings, patience=one_by_one) as client:
        with breaking_proxy(host, lifetime=large + second // 2) as (proxied, _):
            gone = Repository(registry=proxied, name=name)
            with pytest.raises(RegistryError, match=proxied):
                push_image(image, gone.at("1"), store, client)
        assert client.find(straight.at("1")) is None
        pushed = push_image(image, straight.at("1"), store, client)
        assert pushed.sent == small + second + len(image.config) + len(image.manifest)
        assert pull_image(straight.at("1"), Store(tmp_path / "two"), client) == image


def test_a_manifest_without_its_blobs_is_refused(client: RegistryClient, repository: Repository) -> None:
    missing = {"mediaType": "a/b", "digest": f"sha256:{'1' * 64}", "size": 3}
    manifest = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": missing, "layers": []}
    with pytest.raises(RegistryError, match=r"did not take the manifest .* MANIFEST_BLOB_UNKNOWN"):
        client.put_manifest(repository.at("1"), json.dumps(manifest).encode(), OCI_MANIFEST)


def test_publishers_at_once_find_all_that_they_attached(
    connect: Callable[[], RegistryClient], repository: Repository, tmp_path: Path
) -> None:
    """This registry has no referrers API, so all of them write one index."""
    store, client = Store(tmp_path / "one"), connect()
    image = make_image(store, {"small": b"1"})
    push_image(image, repository.at("1"), store, client)
    subject = Descriptor(media_type=OCI_MANIFEST, digest=image.manifest_digest, size=len(image.manifest))

    def publish(text: str) -> str:
        note = Attachment(artifact_type="text/plain", files=(("text/plain", Payload.of(text.encode())),))
        return attach(connect(), repository, subject, note).digest

    with ThreadPoolExecutor(5) as pool:
        attached = list(pool.map(publish, "abcde"))
    assert {item.digest for item in list_referrers(client, repository, subject.digest)} == set(attached)
    assert len(set(attached)) == 5


def test_machines_share_results(host: str, tmp_path: Path) -> None:
    environment = {"ENVBUILD_SHARE": f"{host}/shared", "DOCKER_CONFIG": str(tmp_path)}
    one, two = Store(tmp_path / "one"), Store(tmp_path / "two")
    record = {"name": "a", "version": "1", "filename": "a-1-py3-none-any.whl", "sha256": one.add_bytes(NOISE)}
    one.keep_result("wheel", KEY, record)
    writer = open_share(settings_from({**environment, "ENVBUILD_SHARE_PUSH": "1"}), one, pytest.fail)
    writer.share_results(SHARED, [KEY])
    open_share(settings_from(environment), two, pytest.fail).fetch_results(SHARED, [KEY])
    assert two.result("wheel", KEY) == record
    assert two.path(record["sha256"]).read_bytes() == NOISE


def test_a_registry_with_a_login_is_opened_by_dockers_configuration(tmp_path: Path) -> None:
    with docker_registry(tmp_path / "registry", login=True) as host:
        reference = Reference(repository=Repository(registry=host, name="a/b"), tag="1")
        settings = settings_from({"DOCKER_CONFIG": str(tmp_path)})
        with RegistryClient(settings) as client, pytest.raises(RegistryError, match="HTTP 401 UNAUTHORIZED") as caught:
            client.find_manifest(reference)
        assert f"docker login {host}" in caught.value.remedy
        auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))
        with RegistryClient(settings) as client:
            assert client.push_blob(reference.repository, Payload.of(b"blob")) == 4


@pytest.mark.docker
def test_the_engine_pulls_by_digest_and_runs_what_was_pushed(
    engine: DockerEngine, client: RegistryClient, repository: Repository, tmp_path: Path
) -> None:
    store = Store(tmp_path / "one")
    layer = make_base_layer(store.add_bytes(tiny_layer()), store=store)
    image = assemble((layer,), ImageSettings(epoch=1_764_000_000, environment={"PATH": "/bin"}))
    pushed = push_image(image, repository.at("1"), store, client)
    reference = f"{repository}@{pushed.digest}"
    connection = docker.from_env()
    try:
        assert connection.images.pull(str(repository), tag=pushed.digest).id == image.config_digest
        ended = engine.run(ContainerRun(image=reference, command=("sh", "-c", "echo it runs")))
        assert (ended.code, ended.stdout) == (0, b"it runs\n")
    finally:
        engine.remove_image(reference)
        connection.close()


@pytest.mark.docker
def test_the_engine_pulls_a_layer_that_holds_what_wheels_have_packed(
    engine: DockerEngine, client: RegistryClient, repository: Repository, tmp_path: Path
) -> None:
    """The engine refuses bytes that do not have the diff id of the config: these are the bytes of the plain files."""
    store = Store(tmp_path / "store")
    with zipfile.ZipFile(tmp_path / "a.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("one", NOISE)
        archive.writestr("two", NOISE[::-1])
    files = [
        File(
            path=f"/data/{name}",
            size=len(NOISE),
            content=Member(archive=tmp_path / "a.whl", origin="a.whl", name=name),
        )
        for name in ("one", "two")
    ]
    with (tmp_path / "layer").open("wb") as out:
        blob = write_layer([*files, File(path="/data/small", size=1, content=b"1")], epoch=0, out=out)
    assert blob.size > 2 * len(NOISE), "noise cannot be packed, so both were taken over"
    store.add(tmp_path / "layer")
    layer = make_base_layer(store.add_bytes(tiny_layer()), store=store)
    image = assemble((layer, Layer(title="data", blob=blob)), ImageSettings(epoch=1, environment={"PATH": "/bin"}))
    pushed = push_image(image, repository.at("1"), store, client)
    connection = docker.from_env()
    try:
        assert connection.images.pull(str(repository), tag=pushed.digest).id == image.config_digest
    finally:
        engine.remove_image(f"{repository}@{pushed.digest}")
        connection.close()
