"""Results shared between machines: fetched before they are made, pushed after; faults cost a warning, nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from builder.build.wheels import SHARED as WHEEL
from builder.build.wheels import BuiltWheel, WheelJob
from builder.build.wheelstage import MadeWheel, find_wheel
from builder.console import Console
from builder.document import key_of
from builder.errors import UsageError
from builder.registry.content import OCI_MANIFEST, Payload
from builder.registry.share import NO_SHARE, RESULT_TYPE, open_share
from builder.settings import settings_from
from builder.store import Store
from builder.tools import Tools
from tests.fake_registry import Account, FakeRegistry, Fault, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.registry.share import Sharing

BYTES = b"the bytes of a wheel" * 1000
KEY = key_of("a job")
RECORD = {
    "name": "tiny",
    "version": "1.0",
    "filename": "tiny-1.0-py3-none-any.whl",
    "sha256": Payload.of(BYTES).digest[7:],
}


@dataclass
class Machine:
    """A store, where it shares, and what it was warned of."""

    store: Store
    share: Sharing
    warnings: list[str] = field(default_factory=list)


@dataclass
class Workshop:
    folder: Path
    registry: FakeRegistry

    def machine(self, name: str, **environment: str) -> Machine:
        given = {"DOCKER_CONFIG": str(self.folder), "ENVBUILD_SHARE": f"{self.registry.host}/team/shared"}
        warnings: list[str] = []
        store = Store(self.folder / name)
        share = open_share(settings_from({**given, **environment}), store, warnings.append)
        return Machine(store=store, share=share, warnings=warnings)

    def writer(self, name: str) -> Machine:
        return self.machine(name, ENVBUILD_SHARE_PUSH="1")


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    with running(FakeRegistry()) as registry:
        yield Workshop(folder=tmp_path, registry=registry)


def build(machine: Machine, key: str = KEY) -> None:
    machine.store.add_bytes(BYTES)
    machine.store.keep_result("wheel", key, RECORD)


def put_result(
    registry: FakeRegistry, note: Any, *, files: tuple[bytes, ...] = (BYTES,), kind: str = RESULT_TYPE
) -> None:
    """Put something under the tag of the result that need not be right."""
    data = json.dumps(note).encode()
    described = []
    for item in (data, *files):
        registry.add_blob("team/shared", item)
        described.append({"mediaType": "a/b", "digest": Payload.of(item).digest, "size": len(item)})
    manifest = {"schemaVersion": 2, "artifactType": kind, "config": described[0], "layers": described[1:]}
    registry.manifests["team/shared"] = {f"wheel-{KEY}": (OCI_MANIFEST, json.dumps(manifest).encode())}


def test_what_one_machine_made_another_finds(workshop: Workshop) -> None:
    one, two = workshop.writer("one"), workshop.machine("two")
    build(one)
    one.share.share_results(WHEEL, [KEY])
    two.share.fetch_results(WHEEL, [KEY])
    assert two.store.result("wheel", KEY) == RECORD
    assert two.store.path(RECORD["sha256"]).read_bytes() == BYTES
    assert one.warnings == two.warnings == []


def test_what_nobody_made_is_not_found_and_that_is_no_fault(workshop: Workshop) -> None:
    machine = workshop.machine("one")
    machine.share.fetch_results(WHEEL, [KEY])
    assert machine.store.result("wheel", KEY) is None
    assert machine.warnings == []


def test_a_result_is_the_same_artifact_from_every_machine(workshop: Workshop) -> None:
    manifests = []
    for name in ("one", "two"):
        machine = workshop.writer(name)
        build(machine)
        machine.share.share_results(WHEEL, [KEY])
        manifests.append(workshop.registry.manifests.pop("team/shared"))
    assert manifests[0] == manifests[1]


def test_what_is_shared_already_does_not_travel_again(workshop: Workshop) -> None:
    machine = workshop.writer("one")
    build(machine)
    machine.share.share_results(WHEEL, [KEY])
    workshop.registry.log.clear()
    machine.share.share_results(WHEEL, [KEY])
    assert workshop.registry.log == [f"HEAD /v2/team/shared/manifests/wheel-{KEY}"]


def test_without_the_users_wish_nothing_is_pushed(workshop: Workshop) -> None:
    machine = workshop.machine("one", ENVBUILD_SHARE_PUSH="0")
    build(machine)
    machine.share.share_results(WHEEL, [KEY])
    assert workshop.registry.log == []


def test_a_result_whose_file_left_the_store_is_not_pushed(workshop: Workshop) -> None:
    machine = workshop.writer("one")
    machine.store.keep_result("wheel", KEY, RECORD)
    machine.share.share_results(WHEEL, [KEY, key_of("another")])
    assert workshop.registry.log == []
    assert machine.warnings == []


def test_a_registry_that_is_down_costs_one_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    settings = settings_from({"ENVBUILD_SHARE": "127.0.0.1:9/team/shared", "ENVBUILD_SHARE_PUSH": "1"})
    store = Store(tmp_path)
    share = open_share(settings, store, warnings.append)
    share.fetch_results(WHEEL, [KEY, key_of("another"), key_of("a third")])
    store.add_bytes(BYTES)
    store.keep_result("wheel", KEY, RECORD)
    share.share_results(WHEEL, [KEY])
    assert len(warnings) == 1
    assert warnings[0].startswith("nothing more is shared through 127.0.0.1:9/team/shared: 127.0.0.1:9 did not give")


def test_a_registry_that_does_not_know_the_user_costs_one_warning(workshop: Workshop) -> None:
    workshop.registry.account = Account(scheme="basic")
    machine = workshop.machine("one")
    machine.share.fetch_results(WHEEL, [KEY])
    assert len(machine.warnings) == 1
    assert "HTTP 401" in machine.warnings[0]


@pytest.mark.parametrize(
    "note",
    [
        [],
        {"kind": "wheel", "key": KEY},
        {"kind": "layer", "key": KEY, "record": RECORD},
        {"kind": "wheel", "key": key_of("another job"), "record": RECORD},
        {"kind": "wheel", "key": KEY, "record": {**RECORD, "version": 1}},
        {"kind": "wheel", "key": KEY, "record": {**RECORD, "more": "x"}},
        {"kind": "wheel", "key": KEY, "record": {**RECORD, "filename": "../../etc/x.whl"}},
        {"kind": "wheel", "key": KEY, "record": {**RECORD, "sha256": "0" * 64}},
    ],
)
def test_what_is_not_the_result_is_not_taken_and_replaced_by_the_true_one(note: Any, workshop: Workshop) -> None:
    put_result(workshop.registry, note)
    machine = workshop.writer("one")
    machine.share.fetch_results(WHEEL, [KEY])
    assert machine.store.result("wheel", KEY) is None
    assert len(machine.warnings) == 1
    assert machine.warnings[0].endswith("it is made again here")
    build(machine)
    machine.share.share_results(WHEEL, [KEY])
    reader = workshop.machine("two")
    reader.share.fetch_results(WHEEL, [KEY])
    assert reader.store.result("wheel", KEY) == RECORD


def test_an_artifact_of_another_kind_is_not_taken(workshop: Workshop) -> None:
    put_result(workshop.registry, {"kind": "wheel", "key": KEY, "record": RECORD}, kind="another/kind")
    machine = workshop.machine("one")
    machine.share.fetch_results(WHEEL, [KEY])
    assert machine.store.result("wheel", KEY) is None
    assert "is no shared result" in machine.warnings[0]


def test_damaged_bytes_are_not_taken(workshop: Workshop) -> None:
    put_result(workshop.registry, {"kind": "wheel", "key": KEY, "record": RECORD})
    workshop.registry.faults.append(Fault(method="GET", path=RECORD["sha256"], how="corrupt", times=9))
    machine = workshop.machine("one")
    machine.share.fetch_results(WHEEL, [KEY])
    assert machine.store.result("wheel", KEY) is None
    assert not machine.store.has(RECORD["sha256"])
    assert "sent other bytes" in machine.warnings[0]


def test_who_shares_nothing_opens_no_connection(tmp_path: Path) -> None:
    share = open_share(settings_from({}), Store(tmp_path), pytest.fail)
    assert share is NO_SHARE
    share.fetch_results(WHEEL, [KEY])
    share.share_results(WHEEL, [KEY])


def test_a_share_that_is_no_repository_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'team/shared' names no registry"):
        open_share(settings_from({"ENVBUILD_SHARE": "team/shared"}), Store(tmp_path), pytest.fail)


def test_a_shared_wheel_is_found_before_anything_is_compiled(workshop: Workshop) -> None:
    job = WheelJob(
        name="tiny", source=workshop.folder, source_digest="1", environment=(), toolchain_key="2", script_digest="3"
    )
    writer, reader = workshop.writer("one"), workshop.machine("two")
    build(writer, job.key)
    writer.share.share_results(WHEEL, [job.key])
    settings = settings_from({"ENVBUILD_SHARE": f"{workshop.registry.host}/team/shared"})
    tools = Tools(settings=settings, store=reader.store, console=Console(), connect=lambda: pytest.fail("no engine"))
    assert find_wheel(job, tools) == MadeWheel(job=job, wheel=BuiltWheel(**RECORD), origin="registry")
