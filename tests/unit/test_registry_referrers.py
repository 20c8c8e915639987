"""What is attached to an image is found again, on registries with the referrers API and without, and none is lost."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from builder.download import Patience
from builder.errors import RegistryError
from builder.registry import referrers
from builder.registry.client import RegistryClient
from builder.registry.content import OCI_INDEX, OCI_MANIFEST, Descriptor, Payload
from builder.registry.reference import Reference, Repository
from builder.registry.referrers import Attachment, attach, list_referrers
from builder.settings import settings_from
from tests.fake_registry import FakeRegistry, Fault, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SBOM = "application/vnd.cyclonedx+json"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PATIENCE = Patience(attempts=2, pause=0.0, silence=5.0)


@pytest.fixture(params=[True, False], ids=["with the API", "without the API"])
def registry(request: pytest.FixtureRequest) -> Iterator[FakeRegistry]:
    with running(FakeRegistry(referrers=request.param)) as server:
        yield server


@pytest.fixture
def old_registry() -> Iterator[FakeRegistry]:
    with running(FakeRegistry(referrers=False)) as server:
        yield server


@pytest.fixture
def client(tmp_path: Path) -> Iterator[RegistryClient]:
    with RegistryClient(settings_from({"DOCKER_CONFIG": str(tmp_path)}), patience=PATIENCE) as client:
        yield client


def an_image(registry: FakeRegistry, client: RegistryClient) -> tuple[Repository, Descriptor]:
    repository = Repository(registry=registry.host, name="a/b")
    data = b'{"schemaVersion":2,"layers":[]}'
    client.put_manifest(repository.at("1"), data, OCI_MANIFEST)
    return repository, Descriptor(media_type=OCI_MANIFEST, digest=Payload.of(data).digest, size=len(data))


def note(text: str, kind: str = SBOM) -> Attachment:
    return Attachment(artifact_type=kind, files=((kind, Payload.of(text.encode())),), annotations={"text": text})


def test_what_is_attached_is_listed_by_kind(registry: FakeRegistry, client: RegistryClient) -> None:
    repository, image = an_image(registry, client)
    assert list_referrers(client, repository, image.digest) == ()
    sbom = attach(client, repository, image, note("one"))
    bundle = attach(client, repository, image, note("two", BUNDLE))
    listed = list_referrers(client, repository, image.digest)
    assert {item.digest for item in listed} == {sbom.digest, bundle.digest}
    assert list_referrers(client, repository, image.digest, artifact_type=SBOM) == (sbom,)
    [found] = list_referrers(client, repository, image.digest, artifact_type=BUNDLE)
    assert (found.artifact_type, found.annotations, found.size) == (BUNDLE, {"text": "two"}, bundle.size)


def test_an_attachment_names_its_image_and_holds_its_file(registry: FakeRegistry, client: RegistryClient) -> None:
    repository, image = an_image(registry, client)
    attached = attach(client, repository, image, note("one"))
    manifest = client.manifest(repository.at(attached.digest))
    assert manifest.plain["subject"] == image.to_plain()
    assert manifest.plain["artifactType"] == SBOM
    [file] = manifest.layers
    assert registry.blobs["a/b"][file.digest] == b"one"
    assert registry.blobs["a/b"][manifest.config.digest] == b"{}"


def test_the_same_attachment_again_changes_nothing(registry: FakeRegistry, client: RegistryClient) -> None:
    repository, image = an_image(registry, client)
    first = attach(client, repository, image, note("one"))
    before = dict(registry.manifests["a/b"])
    assert attach(client, repository, image, note("one")) == first
    assert registry.manifests["a/b"] == before


def test_without_the_api_the_index_is_where_other_tools_look(
    old_registry: FakeRegistry, client: RegistryClient
) -> None:
    repository, image = an_image(old_registry, client)
    attached = attach(client, repository, image, note("one"))
    media_type, data = old_registry.manifests["a/b"][image.digest.replace(":", "-")]
    assert media_type == OCI_INDEX
    assert json.loads(data) == {
        "schemaVersion": 2,
        "mediaType": OCI_INDEX,
        "manifests": [
            {
                "mediaType": OCI_MANIFEST,
                "digest": attached.digest,
                "size": attached.size,
                "artifactType": SBOM,
                "annotations": {"text": "one"},
            }
        ],
    }


def test_with_the_api_no_tags_are_made(client: RegistryClient) -> None:
    with running(FakeRegistry(referrers=True)) as registry:
        repository, image = an_image(registry, client)
        attach(client, repository, image, note("one"))
        assert client.tags(repository) == ("1",)


@pytest.mark.parametrize("moment", ["before our first write", "after our first write", "after our last look"])
def test_an_index_that_another_publisher_overwrites_loses_nothing(
    moment: str, old_registry: FakeRegistry, client: RegistryClient, tmp_path: Path
) -> None:
    """The other publisher read the index before us and writes it at the worst moments, then does what everyone does."""
    repository, image = an_image(old_registry, client)
    index = repository.at(image.digest.replace(":", "-"))
    other = note("other")
    announced: list[Descriptor] = []

    def other_writes() -> None:
        with RegistryClient(settings_from({"DOCKER_CONFIG": str(tmp_path)}), patience=PATIENCE) as second:
            announced.append(attach(second, repository, image, other))
            old = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [announced[0].to_plain()]}
            second.put_manifest(index, json.dumps(old).encode(), OCI_INDEX)  # as if it had not seen ours

    tag = f"manifests/{index.tag}$"
    if moment == "before our first write":
        old_registry.faults.append(Fault(method="PUT", path=tag, before=other_writes))
    elif moment == "after our first write":
        old_registry.faults.append(Fault(method="GET", path=tag, before=lambda: None))
        old_registry.faults.append(Fault(method="GET", path=tag, before=other_writes))
    ours = attach(client, repository, image, note("ours"))
    if moment == "after our last look":
        other_writes()
        with RegistryClient(settings_from({"DOCKER_CONFIG": str(tmp_path)}), patience=PATIENCE) as second:
            attach(second, repository, image, other)  # its own last look finds what it overwrote
    listed = {item.digest for item in list_referrers(client, repository, image.digest)}
    assert listed == {ours.digest, announced[0].digest}


def test_many_publishers_at_once_lose_nothing(old_registry: FakeRegistry, client: RegistryClient) -> None:
    repository, image = an_image(old_registry, client)
    with ThreadPoolExecutor(6) as pool:
        attached = list(pool.map(lambda text: attach(client, repository, image, note(text)), "abcdef"))
    listed = {item.digest for item in list_referrers(client, repository, image.digest)}
    assert listed == {item.digest for item in attached}
    assert len(listed) == 6


def test_what_other_tools_attached_stays(old_registry: FakeRegistry, client: RegistryClient) -> None:
    repository, image = an_image(old_registry, client)
    foreign = Descriptor(media_type=OCI_MANIFEST, digest=Payload.of(b"x").digest, size=1, artifact_type="a/b")
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [foreign.to_plain()]}
    tag = repository.at(image.digest.replace(":", "-"))
    client.put_manifest(tag, json.dumps(index).encode(), OCI_INDEX)
    ours = attach(client, repository, image, note("one"))
    listed = list_referrers(client, repository, image.digest)
    assert [item.digest for item in listed] == [foreign.digest, ours.digest]


def test_tags_of_other_images_and_tools_are_no_announcements(
    old_registry: FakeRegistry, client: RegistryClient
) -> None:
    repository, image = an_image(old_registry, client)
    tag = image.digest.replace(":", "-")
    for name in (f"{tag}.sig", f"{tag}.0123456789abcdef", f"sha256-{'0' * 64}.0123456789abcdef"):
        client.put_manifest(Reference(repository=repository, tag=name), b'{"schemaVersion":2}', OCI_MANIFEST)
    ours = attach(client, repository, image, note("one"))
    assert [item.digest for item in list_referrers(client, repository, image.digest)] == [ours.digest]


def test_an_index_that_never_holds_what_was_written_is_an_error(
    old_registry: FakeRegistry, client: RegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(referrers, "ATTEMPTS", 3)
    repository, image = an_image(old_registry, client)
    headers = {"Content-Type": OCI_INDEX}
    tag = f"manifests/{image.digest.replace(':', '-')}$"
    empty = '{"schemaVersion":2,"manifests":[]}'
    old_registry.faults.append(Fault(method="GET", path=tag, status=200, headers=headers, body=empty, times=99))
    with pytest.raises(RegistryError, match="does not keep the list of what is attached to a/b@sha256:"):
        attach(client, repository, image, note("one"))
    assert len(old_registry.asked(f"PUT .*{tag}")) == 3


def test_a_referrers_answer_that_is_none_is_refused(client: RegistryClient) -> None:
    with running(FakeRegistry(referrers=True)) as registry:
        repository, image = an_image(registry, client)
        registry.faults.append(Fault(method="GET", path="referrers", status=200, body="<html>"))
        with pytest.raises(RegistryError, match="did not list what is attached"):
            list_referrers(client, repository, image.digest)


def test_every_manifest_of_an_attachment_is_tried_again_while_what_it_names_is_not_seen(
    old_registry: FakeRegistry, client: RegistryClient
) -> None:
    """The attached manifest, the tag that announces it, and the index."""
    repository, image = an_image(old_registry, client)
    body = json.dumps({"errors": [{"code": "MANIFEST_BLOB_UNKNOWN", "message": "unseen"}]})
    for path in ("/manifests/sha256:", r"/manifests/sha256-\w+\.", r"/manifests/sha256-\w+$"):
        old_registry.faults.append(Fault(method="PUT", path=path, status=400, body=body))
    attached = attach(client, repository, image, note("one"))
    assert list_referrers(client, repository, image.digest) == (attached,)
    assert not old_registry.faults
