"""The GPUs of an engine: what it says of them, which a container is given, where a cell that needs one may run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.dockerd.devices import gpu_requests, gpus_in
from builder.engine import ALL_GPUS, NoGpuError
from builder.matrix import engines, gridrun
from builder.matrix.cellrun import report_without_run
from builder.matrix.cells import cells_of
from builder.matrix.engines import gather_crew, gpus_of
from builder.matrix.grid import read_matrix
from builder.matrix.gridrun import need_of, run_alone, run_matrix
from builder.matrix.warm import CellProcesses
from builder.settings import settings_from
from tests.fakes import FACTS, FakeEngine
from tests.publication import proven_project

if TYPE_CHECKING:
    from pathlib import Path

    from tests.workshop import Project

CARDS = [{"Source": "cdi", "ID": f"nvidia.com/gpu={name}"} for name in ("1", "0", "GPU-a", "GPU-b", "all")]
NAMED = [{"NamedResourceSpec": {"Kind": "NVIDIA-GPU", "Value": name}} for name in ("GPU-a", "GPU-b")]


@pytest.mark.parametrize(
    ("info", "found"),
    [
        ({}, ()),
        ({"DiscoveredDevices": None, "GenericResources": None}, ()),
        ({"DiscoveredDevices": CARDS}, ("0", "1")),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "vendor.com/net=0"}]}, ()),
        ({"GenericResources": [*NAMED, {"DiscreteResourceSpec": {"Kind": "SSD", "Value": 3}}]}, ("GPU-a", "GPU-b")),
    ],
)
def test_an_engine_that_says_which_gpus_it_has_is_understood(info: dict[str, Any], found: tuple[str, ...]) -> None:
    assert gpus_in(info) == found


def test_a_container_sees_only_the_gpus_that_it_was_given() -> None:
    assert gpu_requests(0, ("1",)) is None
    asked = {wanted: gpu_requests(wanted, ("2", "3")) for wanted in (1, 2, ALL_GPUS)}
    assert {wanted: found[0]["DeviceIDs"] for wanted, found in asked.items() if found} == {
        1: ["2"],
        2: ["2", "3"],
        ALL_GPUS: ["2", "3"],
    }
    free = gpu_requests(1, ()) or []
    assert [(one["Count"], one["DeviceIDs"]) for one in free] == [(1, [])]
    with pytest.raises(NoGpuError, match="2 GPUs are needed, and only 3 may be used"):
        gpu_requests(2, ("3",))


def test_what_the_user_says_of_the_gpus_counts_before_what_the_engine_says() -> None:
    told, silent = settings_from({"ENVBUILD_GPUS": "2, 3"}), settings_from({})
    facts = replace(FACTS, gpus=("0",))
    assert gpus_of("tcp://far:2375", facts, told) == ("2", "3")
    assert gpus_of("tcp://far:2375", facts, silent) == ("0",)
    assert gpus_of("tcp://far:2375", FACTS, silent) == ()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = proven_project(tmp_path)
    text = made.source.path.read_text(encoding="utf-8").replace("[static]", "[static, gpu-decode]")
    made.source.path.write_text(text, encoding="utf-8")
    (made.root / "matrix.yaml").write_text(
        "version: 1\nname: small\nrecipe: recipes/small.yaml\naxes: {target: [rtx-pro-6000]}\n", encoding="utf-8"
    )
    return made


def pretend(monkeypatch: pytest.MonkeyPatch, gpus: dict[str, tuple[str, ...]]) -> None:
    """Engines that pretend: each says which GPUs it has."""

    def connect(name: str, _settings: object) -> FakeEngine:
        engine = FakeEngine()
        monkeypatch.setattr(engine, "facts", lambda: replace(FACTS, host=name, gpus=gpus[name]), raising=False)
        return engine

    monkeypatch.setattr(engines, "connect_to", connect)
    monkeypatch.setattr(gridrun, "connect_to", connect)


def test_a_crew_knows_the_gpus_of_each_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {"tcp://a": ("0", "1"), "tcp://b": ()})
    crew = gather_crew(["tcp://a", "tcp://b"], settings_from({}), pytest.fail)
    assert {seat.name: seat.gpus for seat in crew.seats} == {"tcp://a": ("0", "1"), "tcp://b": ()}


@pytest.mark.parametrize("alone", [False, True])
def test_a_cell_that_needs_a_gpu_is_shown_and_not_run_where_no_engine_has_one(
    project: Project, monkeypatch: pytest.MonkeyPatch, *, alone: bool
) -> None:
    pretend(monkeypatch, {"tcp://plain": ()})
    file = read_matrix(project.root / "matrix.yaml")
    (cell,) = cells_of(file)
    assert need_of(cell).gpus == 1
    if alone:
        report = run_alone(file, cell, "tcp://plain", project.tools)
    else:
        report, path = run_matrix(file, [cell], ["tcp://plain"], project.tools)
        assert json.loads(path.read_text())["cells"][0]["state"] == "unverified"
    (shown,) = report.cells
    assert (shown.state, shown.place) == ("unverified", None)
    assert shown.cause == "not run: its checks need 1 GPU, and no engine has any"


def test_a_cell_is_given_its_gpu(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {"tcp://plain": (), "tcp://card": ("7",)})
    file = read_matrix(project.root / "matrix.yaml")
    given = []

    def run(_self: object, cell: Any, _folder: Path, settings: Any, *, engine: str, **_more: object) -> Any:
        given.append((engine, settings.gpus))
        return report_without_run(cell).model_copy(update={"state": "good", "cause": "seen", "place": engine})

    monkeypatch.setattr(CellProcesses, "run", run)
    report, _ = run_matrix(file, cells_of(file), ["tcp://plain", "tcp://card"], project.tools)
    assert given == [("tcp://card", ("7",))]
    assert report.cells[0].place == "tcp://card"
