"""Whole pushes and fetches: only what is missing travels, the manifest last, the first failure ends all."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from builder.download import Patience, Progress
from builder.errors import RegistryError
from builder.registry.client import RegistryClient
from builder.registry.content import OCI_MANIFEST, Descriptor, Payload
from builder.registry.faults import StoppedError
from builder.registry.reference import Reference, Repository
from builder.registry.transfer import _in_parallel, fetch, push
from builder.settings import settings_from
from builder.store import Store
from tests.fake_registry import FakeRegistry, Fault, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.registry.watch import Watch

BLOBS = tuple(Payload.of(f"blob {number}".encode() * (number + 1)) for number in range(8))


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with running(FakeRegistry()) as server:
        yield server


@pytest.fixture
def client(tmp_path: Path) -> Iterator[RegistryClient]:
    patience = Patience(attempts=2, pause=0.0, silence=5.0, parallel=3)
    with RegistryClient(settings_from({"DOCKER_CONFIG": str(tmp_path)}), patience=patience) as client:
        yield client


def manifest_of(*payloads: Payload) -> bytes:
    described = [Descriptor(media_type="a/b", digest=item.digest, size=item.size).to_plain() for item in payloads]
    return json.dumps({"schemaVersion": 2, "config": described[0], "layers": described[1:]}).encode()


def tagged(registry: FakeRegistry) -> Reference:
    return Repository(registry=registry.host, name="a/b").at("1")


def test_only_missing_blobs_travel_and_the_manifest_is_last(registry: FakeRegistry, client: RegistryClient) -> None:
    for payload in BLOBS[:5]:
        assert isinstance(payload.source, bytes)
        registry.add_blob("a/b", payload.source)
    manifest = manifest_of(*BLOBS)
    pushed = push(client, tagged(registry), manifest, OCI_MANIFEST, BLOBS)
    assert pushed.digest == Payload.of(manifest).digest
    assert pushed.sent == sum(payload.size for payload in BLOBS[5:]) + len(manifest)
    assert registry.manifests["a/b"]["1"] == (OCI_MANIFEST, manifest)
    assert registry.log[-1] == "PUT /v2/a/b/manifests/1"
    assert len(registry.asked("^POST")) == 3


def test_a_push_with_nothing_new_sends_the_manifest_alone(registry: FakeRegistry, client: RegistryClient) -> None:
    manifest = manifest_of(*BLOBS)
    push(client, tagged(registry), manifest, OCI_MANIFEST, BLOBS)
    assert push(client, tagged(registry), manifest, OCI_MANIFEST, BLOBS).sent == len(manifest)


def test_a_blob_that_stands_twice_in_an_image_travels_once(registry: FakeRegistry, client: RegistryClient) -> None:
    manifest = manifest_of(BLOBS[0], BLOBS[1], BLOBS[1])
    pushed = push(client, tagged(registry), manifest, OCI_MANIFEST, [BLOBS[0], BLOBS[1], BLOBS[1]])
    assert pushed.sent == BLOBS[0].size + BLOBS[1].size + len(manifest)


def test_without_a_tag_the_manifest_goes_under_its_digest(registry: FakeRegistry, client: RegistryClient) -> None:
    repository = Repository(registry=registry.host, name="a/b")
    pushed = push(client, Reference(repository=repository), manifest_of(*BLOBS), OCI_MANIFEST, BLOBS)
    assert list(registry.manifests["a/b"]) == [pushed.digest]


def test_a_push_that_fails_leaves_no_manifest(registry: FakeRegistry, client: RegistryClient) -> None:
    registry.faults.append(Fault(method="PUT", path=BLOBS[4].digest, status=507, times=99))
    with pytest.raises(RegistryError, match=f"refused to take the blob {BLOBS[4].digest} of a/b: HTTP 507"):
        push(client, tagged(registry), manifest_of(*BLOBS), OCI_MANIFEST, BLOBS)
    assert registry.manifests == {}
    assert registry.asked("manifests") == []


def test_blobs_are_mounted_from_where_they_are(registry: FakeRegistry, client: RegistryClient) -> None:
    for payload in BLOBS:
        assert isinstance(payload.source, bytes)
        registry.add_blob("c/d", payload.source)
    manifest = manifest_of(*BLOBS)
    sources = [Repository(registry=registry.host, name="c/d")]
    pushed = push(client, tagged(registry), manifest, OCI_MANIFEST, BLOBS, sources=sources)
    assert pushed.sent == len(manifest)


def test_progress_ends_with_everything(registry: FakeRegistry, client: RegistryClient) -> None:
    seen: list[Progress] = []
    push(client, tagged(registry), manifest_of(*BLOBS), OCI_MANIFEST, BLOBS, on_progress=seen.append)
    total = sum(payload.size for payload in BLOBS)
    assert all(progress.done <= progress.total == total for progress in seen)
    assert (seen[-1].done, seen[-1].files_done, seen[-1].files_total) == (total, len(BLOBS), len(BLOBS))


def test_missing_blobs_are_fetched_into_the_store(
    registry: FakeRegistry, client: RegistryClient, tmp_path: Path
) -> None:
    push(client, tagged(registry), manifest_of(*BLOBS), OCI_MANIFEST, BLOBS)
    store = Store(tmp_path / "store")
    assert isinstance(BLOBS[0].source, bytes)
    store.add_bytes(BLOBS[0].source)
    seen: list[Progress] = []
    wanted = [Descriptor(media_type="a/b", digest=item.digest, size=item.size) for item in BLOBS]
    fetch(client, tagged(registry).repository, wanted, store, on_progress=seen.append)
    assert [store.path(item.sha256).read_bytes() for item in wanted] == [item.source for item in BLOBS]
    assert len(registry.asked("^GET")) == len(BLOBS) - 1
    assert seen[-1].done == sum(item.size for item in BLOBS[1:])


def test_a_blob_that_is_not_there_is_named(registry: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    wanted = [Descriptor(media_type="a/b", digest=item.digest, size=item.size) for item in BLOBS[:1]]
    with pytest.raises(
        RegistryError, match=f"refused to give the blob {BLOBS[0].digest} of a/b: HTTP 404 BLOB_UNKNOWN"
    ):
        fetch(client, tagged(registry).repository, wanted, Store(tmp_path / "store"))


def test_the_first_failure_stops_what_still_runs() -> None:
    stopped: list[str] = []
    waiting = threading.Event()

    def work(digest: str, watch: Watch) -> None:
        if digest == "small":
            waiting.wait(10)
            raise RegistryError("it fails")
        try:
            waiting.set()
            watch.pause(20)
        except StoppedError:
            stopped.append(digest)
            raise

    with pytest.raises(RegistryError, match="it fails"):
        _in_parallel(work, {"large": 2, "small": 1}, 2, None)
    assert stopped == ["large"]


def test_a_blob_that_is_lost_before_the_manifest_comes_is_pushed_again(
    registry: FakeRegistry, client: RegistryClient
) -> None:
    lost = BLOBS[2].digest
    registry.faults.append(Fault(method="PUT", path="/manifests/", before=lambda: registry.blobs["a/b"].pop(lost)))
    manifest = manifest_of(*BLOBS)
    push(client, tagged(registry), manifest, OCI_MANIFEST, BLOBS)
    assert registry.manifests["a/b"]["1"] == (OCI_MANIFEST, manifest)
    assert lost in registry.blobs["a/b"]
    assert len(registry.asked("POST .*/uploads/")) == len(BLOBS) + 1


def test_a_manifest_is_tried_again_while_a_registry_does_not_see_what_it_names(
    registry: FakeRegistry, client: RegistryClient
) -> None:
    """Debian's registry answers so while another publisher's upload rewrites the link of the same blob."""
    codes = [{"code": "DIGEST_INVALID", "message": "m"}, {"code": "MANIFEST_BLOB_UNKNOWN", "message": "n"}]
    body = json.dumps({"errors": codes})
    registry.faults.append(Fault(method="PUT", path="/manifests/", status=400, body=body))
    push(client, tagged(registry), manifest_of(*BLOBS), OCI_MANIFEST, BLOBS)
    assert "1" in registry.manifests["a/b"]
    assert len(registry.asked("POST .*/uploads/")) == len(BLOBS)


@pytest.mark.parametrize(
    ("code", "attempts"), [("MANIFEST_BLOB_UNKNOWN", 2), ("BLOB_UNKNOWN", 2), ("MANIFEST_INVALID", 1), ("DENIED", 1)]
)
def test_a_manifest_is_tried_again_for_unseen_blobs_alone_and_not_for_ever(
    registry: FakeRegistry, client: RegistryClient, code: str, attempts: int
) -> None:
    body = json.dumps({"errors": [{"code": code, "message": "m"}]})
    registry.faults.append(Fault(method="PUT", path="/manifests/", status=400, body=body, times=9))
    with pytest.raises(RegistryError, match=f"HTTP 400 {code}: m"):
        push(client, tagged(registry), manifest_of(*BLOBS), OCI_MANIFEST, BLOBS)
    assert len(registry.asked("PUT .*/manifests/")) == attempts
    assert "a/b" not in registry.manifests
