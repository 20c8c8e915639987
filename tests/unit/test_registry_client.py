"""The client against a registry that misbehaves: it completes, or says what was refused; never a wrong byte."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING

import pytest

from builder.download import Patience
from builder.errors import RegistryError
from builder.registry import transport, upload
from builder.registry.client import RegistryClient
from builder.registry.content import OCI_MANIFEST, Descriptor, Payload
from builder.registry.faults import DamagedError, StoppedError
from builder.registry.reference import Repository, parse_reference
from builder.registry.watch import Watch
from builder.settings import settings_from
from builder.store import Store
from tests.fake_registry import FakeRegistry, Fault, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HASTY = Patience(attempts=3, pause=0.0, silence=5.0, parallel=4)
SMALL = b"a small blob"
LARGE = bytes(range(256)) * 4096  # 1 MiB, in chunks of 256 KiB
CHUNK = 256 << 10
METHODS = ("HEAD", "POST", "PATCH", "PUT")


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with running(FakeRegistry()) as server:
        yield server


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistryClient]:
    monkeypatch.setattr(upload, "MONOLITHIC", 64 << 10)
    monkeypatch.setattr(upload, "CHUNK", CHUNK)
    with RegistryClient(settings_from({"DOCKER_CONFIG": str(tmp_path)}), patience=HASTY) as client:
        yield client


@pytest.fixture
def repository(registry: FakeRegistry) -> Repository:
    return Repository(registry=registry.host, name="team/stack")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def large(tmp_path: Path) -> Payload:
    path = tmp_path / "large"
    path.write_bytes(LARGE)
    return Payload(digest=f"sha256:{hashlib.sha256(LARGE).hexdigest()}", size=len(LARGE), source=path)


def described(data: bytes) -> Descriptor:
    payload = Payload.of(data)
    return Descriptor(media_type="application/octet-stream", digest=payload.digest, size=payload.size)


# blobs out


def test_a_small_blob_travels_in_one_request_and_only_once(
    registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    assert client.push_blob(repository, Payload.of(SMALL)) == len(SMALL)
    assert registry.blobs["team/stack"] == {Payload.of(SMALL).digest: SMALL}
    assert len(registry.asked("^PATCH")) == 0
    assert client.push_blob(repository, Payload.of(SMALL)) == 0
    assert len(registry.asked("^PUT")) == 1


def test_an_empty_blob_travels_too(registry: FakeRegistry, client: RegistryClient, repository: Repository) -> None:
    client.push_blob(repository, Payload.of(b""))
    assert registry.blobs["team/stack"][Payload.of(b"").digest] == b""


def test_a_large_blob_travels_in_chunks_and_says_how_far_it_is(
    registry: FakeRegistry, client: RegistryClient, repository: Repository, large: Payload
) -> None:
    seen: list[int] = []
    assert client.push_blob(repository, large, watch=Watch(on_bytes=seen.append)) == len(LARGE)
    assert registry.blobs["team/stack"][large.digest] == LARGE
    assert len(registry.asked("^PATCH")) == 4
    assert seen == sorted(seen)
    assert seen[-1] == len(LARGE)


def test_the_registry_may_ask_for_longer_chunks(
    registry: FakeRegistry, client: RegistryClient, repository: Repository, large: Payload
) -> None:
    location = {"Location": "/v2/team/stack/blobs/uploads/mine", "OCI-Chunk-Min-Length": str(len(LARGE))}
    registry.uploads["mine"] = bytearray()
    registry.faults.append(Fault(method="POST", path="uploads", status=202, headers=location))
    client.push_blob(repository, large)
    assert len(registry.asked("^PATCH")) == 1


def test_an_upload_goes_on_where_a_reset_broke_it(
    registry: FakeRegistry, client: RegistryClient, repository: Repository, large: Payload
) -> None:
    registry.faults.append(Fault(method="PATCH", path="uploads", how="cut request", count=100_000))
    client.push_blob(repository, large)
    assert registry.blobs["team/stack"][large.digest] == LARGE
    assert len(registry.asked("^POST")) == 1, "the same upload"
    assert len(registry.asked("^GET .*uploads")) == 1, "asked how much came"


def test_a_reset_before_the_first_byte_is_told_from_one_after_it(
    registry: FakeRegistry, client: RegistryClient, repository: Repository, large: Payload
) -> None:
    registry.faults.append(Fault(method="PATCH", path="uploads", how="reset"))
    client.push_blob(repository, large)  # the registry says 0-0, which means nothing
    assert registry.blobs["team/stack"][large.digest] == LARGE
    assert len(registry.asked("^POST")) == 1


def test_breaks_do_not_use_up_the_attempts_while_bytes_arrive(
    registry: FakeRegistry, client: RegistryClient, repository: Repository, large: Payload
) -> None:
    registry.faults.append(Fault(method="PATCH", path="uploads", how="cut request", count=100_000, times=8))
    client.push_blob(repository, large)
    assert registry.blobs["team/stack"][large.digest] == LARGE
    assert len(registry.asked("^POST")) == 1


def test_an_upload_whose_session_is_lost_begins_again(
    registry: FakeRegistry, client: RegistryClient, repository: Repository, large: Payload
) -> None:
    registry.faults.append(Fault(method="PATCH", path="state-262144", how="forget"))
    seen: list[int] = []
    client.push_blob(repository, large, watch=Watch(on_bytes=seen.append))
    assert registry.blobs["team/stack"][large.digest] == LARGE
    assert len(registry.asked("^POST")) == 2
    assert seen.count(0) == 2, "the progress began again too"


def test_a_chunk_that_arrived_before_its_answer_was_lost_is_not_sent_twice(
    registry: FakeRegistry, client: RegistryClient, repository: Repository, large: Payload
) -> None:
    registry.faults.append(Fault(method="PATCH", path="uploads", how="cut request", count=CHUNK))
    client.push_blob(repository, large)
    assert registry.blobs["team/stack"][large.digest] == LARGE
    assert len(registry.asked("^PATCH")) == 4


@pytest.mark.parametrize("fault", [f"{method} {how}" for method in METHODS for how in ("answer", "reset")])
def test_an_upload_survives_a_fault_of_any_request(
    fault: str, registry: FakeRegistry, client: RegistryClient, repository: Repository, large: Payload
) -> None:
    method, how = fault.split()
    registry.faults.append(Fault(method=method, path="blobs", how=how, status=503, times=2))  # type: ignore[arg-type]
    client.push_blob(repository, large)
    assert registry.blobs["team/stack"][large.digest] == LARGE
    assert registry.faults == []


def test_a_blob_that_was_named_before_the_answer_was_lost_counts(
    registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    def name_it() -> None:
        registry.add_blob("team/stack", SMALL)

    registry.faults.append(Fault(method="PUT", path="uploads", how="reset", before=name_it))
    client.push_blob(repository, Payload.of(SMALL))
    assert len(registry.asked("^PUT")) == 1


def test_an_answer_without_location_is_asked_for_again_and_then_named(
    registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    registry.faults.append(Fault(method="POST", path="uploads", status=202))
    client.push_blob(repository, Payload.of(SMALL))
    registry.faults.append(Fault(method="POST", path="uploads", status=202, times=99))
    with pytest.raises(RegistryError, match=r"did not take the blob .* names no Location"):
        client.push_blob(repository, Payload.of(b"another"))


def test_an_upload_that_never_gets_through_is_given_up(
    registry: FakeRegistry, client: RegistryClient, repository: Repository, large: Payload
) -> None:
    registry.faults.append(Fault(method="PATCH", path="uploads", how="reset", times=99))
    with pytest.raises(RegistryError) as caught:
        client.push_blob(repository, large)
    assert f"{registry.host} did not take the blob {large.digest} of team/stack in 3 attempts" in caught.value.message
    assert "s3cret" not in caught.value.message + caught.value.remedy + "".join(caught.value.evidence)


def test_damage_on_the_way_is_found_by_the_registry_and_sent_again(
    registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    error = json.dumps({"errors": [{"code": "DIGEST_INVALID", "message": "other bytes"}]})
    registry.faults.append(Fault(method="PUT", path="uploads", status=400, body=error))
    client.push_blob(repository, Payload.of(SMALL))
    assert registry.blobs["team/stack"][Payload.of(SMALL).digest] == SMALL


def test_a_file_that_is_not_what_its_name_says_is_not_pushed_and_named(
    registry: FakeRegistry, client: RegistryClient, repository: Repository, large: Payload, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(LARGE[:-1] + b"x")
    with pytest.raises(RegistryError, match=f"the bytes of {large.digest} are not those of its name"):
        client.push_blob(repository, large)
    assert "team/stack" not in registry.blobs
    assert len(registry.asked("^POST")) == 1, "sent once, not again and again"


def test_a_file_that_becomes_shorter_while_it_is_sent_is_an_error(
    client: RegistryClient, repository: Repository, large: Payload, tmp_path: Path
) -> None:
    os.truncate(tmp_path / "large", 100_000)
    with pytest.raises(RegistryError, match="became shorter while it was sent"):
        client.push_blob(repository, large)


def test_a_registry_that_takes_a_blob_and_does_not_have_it_is_caught(
    registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    registry.faults.append(Fault(method="PUT", path="uploads", status=201))
    with pytest.raises(RegistryError, match="but does not have it"):
        client.push_blob(repository, Payload.of(SMALL))


def test_a_registry_with_a_part_of_a_blob_is_caught(
    registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    registry.blobs["team/stack"] = {Payload.of(SMALL).digest: SMALL[:5]}
    with pytest.raises(RegistryError, match=f"with 5 bytes, it must have {len(SMALL)}"):
        client.push_blob(repository, Payload.of(SMALL))


def test_a_blob_of_another_repository_is_mounted(
    registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    digest = registry.add_blob("team/other", SMALL)
    sources = [Repository(registry=registry.host, name="team/other")]
    assert client.push_blob(repository, Payload.of(SMALL), sources=sources) == 0
    assert registry.blobs["team/stack"] == {digest: SMALL}
    assert len(registry.asked("^PUT")) == 0


def test_a_mount_that_is_refused_becomes_an_upload(
    registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    registry.add_blob("team/other", SMALL)
    registry.mounts = False
    sources = [Repository(registry=registry.host, name="team/other")]
    assert client.push_blob(repository, Payload.of(SMALL), sources=sources) == len(SMALL)
    assert len(registry.asked("^POST")) == 1, "the upload that the registry offered is used"
    registry.faults.append(Fault(method="POST", path="mount", status=403))
    assert client.push_blob(repository, Payload.of(b"another"), sources=sources) == len(b"another")


def test_nothing_is_mounted_from_another_registry(
    registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    client.push_blob(repository, Payload.of(SMALL), sources=[Repository(registry="registry.example", name="a")])
    assert registry.asked("mount") == []


def test_a_stopped_upload_sends_no_further_bytes(
    registry: FakeRegistry, client: RegistryClient, repository: Repository, large: Payload
) -> None:
    stop = threading.Event()
    with pytest.raises(StoppedError):
        client.push_blob(
            repository, large, watch=Watch(on_bytes=lambda at: stop.set() if at > CHUNK else None, stop=stop)
        )
    assert len(registry.asked("^PATCH")) <= 2
    assert len(registry.asked("^PUT")) == 0


# blobs in


def test_a_blob_comes_into_the_store_once(
    registry: FakeRegistry, client: RegistryClient, repository: Repository, store: Store
) -> None:
    registry.add_blob("team/stack", LARGE)
    path = client.fetch_blob(repository, described(LARGE), store)
    assert path.read_bytes() == LARGE
    client.fetch_blob(repository, described(LARGE), store)
    assert len(registry.asked("^GET")) == 1


@pytest.mark.parametrize("how", ["cut answer", "reset", "answer"])
def test_a_download_goes_on_after_a_fault(
    how: str, registry: FakeRegistry, client: RegistryClient, repository: Repository, store: Store
) -> None:
    registry.add_blob("team/stack", LARGE)
    registry.faults.append(Fault(method="GET", path="blobs", how=how, count=300_000, times=2))  # type: ignore[arg-type]
    assert client.fetch_blob(repository, described(LARGE), store).read_bytes() == LARGE
    assert len(registry.asked("^GET")) == 3


def test_a_download_is_continued_by_the_next_command(
    registry: FakeRegistry, client: RegistryClient, repository: Repository, store: Store
) -> None:
    registry.add_blob("team/stack", LARGE)
    registry.faults.append(Fault(method="GET", path="blobs", how="cut answer", count=200_000, times=3))
    with pytest.raises(RegistryError, match=f"did not give the blob {described(LARGE).digest} of team/stack"):
        client.fetch_blob(repository, described(LARGE), store)
    seen: list[int] = []
    client.fetch_blob(repository, described(LARGE), store, watch=Watch(on_bytes=seen.append))
    assert seen[0] > 500_000


def test_other_bytes_than_the_digest_says_never_reach_the_store(
    registry: FakeRegistry, client: RegistryClient, repository: Repository, store: Store
) -> None:
    registry.add_blob("team/stack", LARGE)
    registry.faults.append(Fault(method="GET", path="blobs", how="corrupt", times=99))
    with pytest.raises(DamagedError, match="sent other bytes than sha256:"):
        client.fetch_blob(repository, described(LARGE), store)
    assert not store.has(described(LARGE).sha256)
    assert not list((store.root / "tmp").iterdir())


def test_a_damaged_part_is_thrown_away_and_fetched_again(
    registry: FakeRegistry, client: RegistryClient, repository: Repository, store: Store
) -> None:
    registry.add_blob("team/stack", LARGE)
    (store.root / "tmp" / f"part-{described(LARGE).sha256}").write_bytes(b"other bytes")
    assert client.fetch_blob(repository, described(LARGE), store).read_bytes() == LARGE


@pytest.mark.parametrize("wrong", [LARGE[:1000], LARGE + b"more"])
def test_a_blob_of_another_length_is_refused(
    wrong: bytes, registry: FakeRegistry, client: RegistryClient, repository: Repository, store: Store
) -> None:
    registry.blobs["team/stack"] = {described(LARGE).digest: wrong}
    with pytest.raises(RegistryError, match="in 3 attempts"):
        client.fetch_blob(repository, described(LARGE), store)
    assert not store.has(described(LARGE).sha256)


def test_a_blob_may_be_elsewhere(
    registry: FakeRegistry, client: RegistryClient, repository: Repository, store: Store
) -> None:
    with running(FakeRegistry()) as elsewhere:
        elsewhere.add_blob("kept", SMALL)
        location = {"Location": f"http://{elsewhere.host}/v2/kept/blobs/{described(SMALL).digest}"}
        registry.faults.append(Fault(method="GET", path="blobs", status=307, headers=location))
        assert client.fetch_blob(repository, described(SMALL), store).read_bytes() == SMALL


def test_redirects_in_a_circle_end(
    registry: FakeRegistry, client: RegistryClient, repository: Repository, store: Store
) -> None:
    location = {"Location": f"/v2/team/stack/blobs/{described(SMALL).digest}"}
    registry.faults.append(Fault(method="GET", path="blobs", status=307, headers=location, times=99))
    with pytest.raises(RegistryError, match="again and again"):
        client.fetch_blob(repository, described(SMALL), store)


def test_a_redirect_to_an_unencrypted_host_is_not_followed(
    registry: FakeRegistry, client: RegistryClient, repository: Repository, store: Store
) -> None:
    location = {"Location": "http://blobs.example/x?signature=s3cret"}
    registry.faults.append(Fault(method="GET", path="blobs", status=307, headers=location))
    with pytest.raises(RegistryError, match=r"http://blobs\.example/x is not encrypted") as caught:
        client.fetch_blob(repository, described(SMALL), store)
    assert "ENVBUILD_INSECURE_REGISTRIES=blobs.example" in caught.value.remedy


# time


def test_an_answer_that_comes_too_slowly_is_given_up(
    registry: FakeRegistry, tmp_path: Path, repository: Repository, store: Store
) -> None:
    registry.add_blob("team/stack", LARGE[:5000])
    registry.faults.append(Fault(method="GET", path="blobs", how="dribble", times=99))
    slow = Patience(attempts=2, pause=0.0, silence=0.2)
    with (
        RegistryClient(settings_from({"DOCKER_CONFIG": str(tmp_path)}), patience=slow) as client,
        pytest.raises(RegistryError, match="slower than 16 KiB/s"),
    ):
        client.fetch_blob(repository, described(LARGE[:5000]), store)


def test_a_silent_registry_is_given_up(registry: FakeRegistry, tmp_path: Path, repository: Repository) -> None:
    registry.faults.append(Fault(method="HEAD", path="manifests", how="silent", count=1, times=99))
    hasty = Patience(attempts=2, pause=0.0, silence=0.1)
    with (
        RegistryClient(settings_from({"DOCKER_CONFIG": str(tmp_path)}), patience=hasty) as client,
        pytest.raises(RegistryError, match="in 2 attempts"),
    ):
        client.find(repository.at("1"))


@pytest.mark.parametrize("asked", ["7", "a date", "junk"])
def test_a_pause_that_the_registry_asks_for_is_made(
    asked: str,
    registry: FakeRegistry,
    client: RegistryClient,
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(Watch, "pause", lambda _, seconds: pauses.append(seconds))
    text = format_datetime(datetime.now(UTC) + timedelta(seconds=200)) if asked == "a date" else asked
    registry.faults.append(Fault(method="HEAD", path="manifests", status=429, headers={"Retry-After": text}))
    assert client.find(repository.at("1")) is None
    assert len(pauses) == 1
    least, most = {"7": (7, 7), "a date": (100, 200), "junk": (0, 0)}[asked]
    assert least <= pauses[0] <= most


def test_who_asks_for_a_long_pause_is_not_waited_for(
    registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    headers = {"Retry-After": "3600"}
    registry.faults.append(Fault(method="HEAD", path="manifests", status=429, headers=headers))
    with pytest.raises(RegistryError, match="for the next 3600 s: HTTP 429"):
        client.find(repository.at("1"))


def test_pauses_double_up_to_a_limit(
    registry: FakeRegistry, tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(Watch, "pause", lambda _, seconds: pauses.append(seconds))
    registry.faults.append(Fault(method="HEAD", path="manifests", status=502, times=99))
    patience = Patience(attempts=5, pause=10.0)
    with (
        RegistryClient(settings_from({"DOCKER_CONFIG": str(tmp_path)}), patience=patience) as client,
        pytest.raises(RegistryError),
    ):
        client.find(repository.at("1"))
    assert pauses == [10.0, 20.0, transport.LONGEST_PAUSE, transport.LONGEST_PAUSE]


# manifests and tags


def test_a_manifest_is_found_by_tag_and_by_digest(client: RegistryClient, repository: Repository) -> None:
    data = b'{"schemaVersion":2}'
    assert client.find(repository.at("1")) is None
    assert client.find_manifest(repository.at("1")) is None
    assert client.put_manifest(repository.at("1"), data, OCI_MANIFEST) is False
    found = client.find(repository.at("1"))
    assert found == Descriptor(media_type=OCI_MANIFEST, digest=Payload.of(data).digest, size=len(data))
    manifest = client.manifest(repository.at(found.digest))
    assert (manifest.data, manifest.descriptor) == (data, found)
    assert client.manifest(parse_reference(f"{repository}:1@{found.digest}")).data == data


def test_a_manifest_that_must_be_there_is_named_when_it_is_not(client: RegistryClient, repository: Repository) -> None:
    with pytest.raises(RegistryError, match=f"{repository.registry} has no {repository}:1"):
        client.manifest(repository.at("1"))


def test_a_manifest_with_other_bytes_than_its_digest_is_refused(
    registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    client.put_manifest(repository.at("1"), b'{"schemaVersion":2}', OCI_MANIFEST)
    registry.faults.append(Fault(method="GET", path="manifests", how="corrupt"))
    with pytest.raises(DamagedError, match="calls the manifest"):
        client.manifest(repository.at("1"))
    digest = Payload.of(b"{}").digest
    registry.manifests["team/stack"][digest] = (OCI_MANIFEST, b'{"other":1}')
    with pytest.raises(DamagedError, match="has another manifest than"):
        client.manifest(repository.at(digest))
    with pytest.raises(DamagedError, match="has another manifest than"):
        client.find(repository.at(digest))


def test_a_manifest_is_never_put_under_the_digest_of_another(
    registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    with pytest.raises(RegistryError, match="another manifest"):
        client.put_manifest(repository.at(Payload.of(b"{}").digest), b'{"a":1}', OCI_MANIFEST)
    assert registry.log == []


def test_a_registry_that_stores_other_bytes_is_caught(
    registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    headers = {"Docker-Content-Digest": Payload.of(b"other").digest}
    registry.faults.append(Fault(method="PUT", path="manifests", status=201, headers=headers))
    with pytest.raises(RegistryError, match="stored the manifest"):
        client.put_manifest(repository.at("1"), b"{}", OCI_MANIFEST)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"no json", "is not JSON"),
        (b"[]", "is no JSON object"),
        (b'{"layers":{}}', "holds no list of layers"),
        (b'{"layers":[{"digest":"sha256:1","size":1,"mediaType":"a"}]}', "without a valid"),
        (b'{"layers":[7]}', "without a valid"),
    ],
)
def test_a_manifest_that_is_none_is_refused(
    data: bytes, said: str, registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    registry.manifests["team/stack"] = {"1": (OCI_MANIFEST, data)}
    with pytest.raises(DamagedError, match=said):
        client.manifest(repository.at("1")).layers  # noqa: B018 - the property raises


def test_a_manifest_without_end_is_refused(
    registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    registry.manifests["team/stack"] = {"1": (OCI_MANIFEST, b" " * (5 << 20))}
    with pytest.raises(RegistryError, match="longer than 4 MiB"):
        client.manifest(repository.at("1"))


def test_all_pages_of_tags_are_read(registry: FakeRegistry, client: RegistryClient, repository: Repository) -> None:
    assert client.tags(repository) == ()
    for tag in ("a", "b", "c", "d", "e"):
        client.put_manifest(repository.at(tag), b"{}", OCI_MANIFEST)
    registry.page = 2
    assert client.tags(repository) == ("a", "b", "c", "d", "e")
    assert len(registry.asked("tags/list")) == 1 + 3


# refusals


def test_a_refusal_names_registry_repository_reason_and_remedy(
    registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    body = json.dumps({"errors": [{"code": "DENIED", "message": "access is\ndenied", "detail": "s3cret"}]})
    registry.faults.append(Fault(method="POST", path="uploads", status=403, body=body))
    with pytest.raises(RegistryError) as caught:
        client.push_blob(repository, Payload.of(SMALL))
    digest = Payload.of(SMALL).digest
    said = f"{registry.host} refused to take the blob {digest} of team/stack: HTTP 403 DENIED: access is denied"
    assert caught.value.message == said
    assert caught.value.remedy == f"run `docker login {registry.host}`, or check the repository's name"


@pytest.mark.parametrize(("status", "remedy"), [(413, "size limit"), (404, "name of the repository"), (405, "log")])
def test_each_refusal_has_its_remedy(
    status: int, remedy: str, registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    registry.faults.append(Fault(method="PUT", path="manifests", status=status, body="<html>"))
    with pytest.raises(RegistryError, match=f"refused to take the manifest of {repository}:1: HTTP {status}") as caught:
        client.put_manifest(repository.at("1"), b"{}", OCI_MANIFEST)
    assert remedy in caught.value.remedy


def test_a_registry_that_is_not_there_is_named(tmp_path: Path) -> None:
    with (
        RegistryClient(settings_from({"DOCKER_CONFIG": str(tmp_path)}), patience=HASTY) as client,
        pytest.raises(RegistryError, match=r"127\.0\.0\.1:9 did not name the manifest .* refused"),
    ):
        client.find(parse_reference("127.0.0.1:9/a:1"))


def test_a_blob_is_proven_to_its_last_byte_and_none_is_kept(
    registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    data = bytes(range(256)) * 4096
    blob = Descriptor(media_type="a/b", digest=registry.add_blob("team/stack", data), size=len(data))
    client.prove_blob(repository, blob)
    assert client.read_blob(repository, blob) == data
    registry.blobs["team/stack"][blob.digest] = data[:-1] + b"x"
    with pytest.raises(DamagedError, match=f"sent other bytes than {blob.digest} of team/stack"):
        client.prove_blob(repository, blob)
    registry.blobs["team/stack"][blob.digest] = data + b"x"
    with pytest.raises(DamagedError, match=f"sent more than the {len(data)} bytes"):
        client.prove_blob(repository, blob)


def test_a_proof_goes_on_where_the_connection_broke(
    registry: FakeRegistry, client: RegistryClient, repository: Repository
) -> None:
    data = bytes(range(256)) * 4096
    blob = Descriptor(media_type="a/b", digest=registry.add_blob("team/stack", data), size=len(data))
    registry.faults.append(Fault(method="GET", path="/blobs/", how="cut answer", count=300_000))
    client.prove_blob(repository, blob)
    assert len(registry.asked("GET .*/blobs/sha256")) == 2
