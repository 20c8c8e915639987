"""`envbuild matrix` on real engines: twelve tiny stacks, two engines of which one may die."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from docker import APIClient

from builder.build.layers import base_tag
from builder.cli import run
from builder.dockerd.containers import OWNER_LABEL
from builder.dockerd.owner import is_dead, is_local
from builder.document import sha256_file
from tests.docker.second_engine import SecondEngine, second_engine
from tests.grid_project import BAD, NAME, REFUSED, grid_project
from tests.workshop import Project, make_rootfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.dockerd.client import DockerEngine

pytestmark = pytest.mark.docker

DEFAULT = "unix:///var/run/docker.sock"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine: DockerEngine) -> Iterator[Project]:
    rootfs = make_rootfs(tmp_path_factory.mktemp("rootfs") / "base.tar")
    with grid_project(tmp_path_factory.mktemp("grid"), rootfs, lambda: engine) as made:
        yield made
    for image in engine.local_images():
        for reference in image.references:
            if reference.startswith(f"envbuild/{NAME}:"):
                engine.remove_image(reference)
    engine.remove_image(base_tag(f"sha256:{sha256_file(rootfs)}"))


@pytest.fixture
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecondEngine]:
    with second_engine(tmp_path_factory.mktemp("second") / "e") as made:
        yield made


def forget(project: Project) -> None:
    """Forget every verdict and every image; wheels, layers and locks stay."""
    for kind in ("trial", "verdict", "cell", "image"):
        shutil.rmtree(project.store.root / "results" / kind, ignore_errors=True)


def matrix(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    code = run(["matrix", *arguments, "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out), said.err


def states(report: Any) -> dict[str, str]:
    return {cell["name"]: cell["state"] for cell in report["cells"]}


def assert_all_verdicts_arrived(report: Any) -> None:
    found = states(report)
    assert {name for name, state in found.items() if state == "refused"} == REFUSED
    assert {name for name, state in found.items() if state == "bad"} == BAD
    assert len([name for name, state in found.items() if state == "good"]) == 8
    assert len(found) == 12


def test_the_list_builds_nothing_and_says_what_preflight_refuses(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report, _ = matrix(capsys, "list")
    assert code == 0
    assert {name for name, state in states(report).items() if state == "refused"} == REFUSED
    assert set(states(report).values()) == {"refused", "pending"}


def test_twelve_cells_on_two_engines_end_as_the_file_expects_and_are_known_the_second_time(
    project: Project, second: SecondEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = ("--engine", DEFAULT, "--engine", second.address)
    code, report, said = matrix(capsys, "run", *engines)
    assert code == 0, said
    assert_all_verdicts_arrived(report)
    ran = [cell for cell in report["cells"] if cell["state"] in {"good", "bad"}]
    assert {cell["place"] for cell in ran} == {DEFAULT, second.address}
    assert all(cell["verdict"]["checks"] and cell["timeline"] and cell["layers"] for cell in ran)
    code, again, _ = matrix(capsys, "run", *engines)
    assert code == 0
    assert states(again) == states(report)
    assert all(cell["known"] for cell in again["cells"] if cell["state"] in {"good", "bad"})


def test_wheels_and_layers_are_made_once(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    code, before, _ = matrix(capsys, "run")
    assert code == 0
    layers = sorted(path.name for path in (project.store.root / "results" / "layer").iterdir())
    forget(project)
    code, report, _ = matrix(capsys, "run")
    assert code == 0
    assert_all_verdicts_arrived(report)
    assert sorted(path.name for path in (project.store.root / "results" / "layer").iterdir()) == layers
    assert {cell["name"]: cell.get("layers") for cell in report["cells"]} == {
        cell["name"]: cell.get("layers") for cell in before["cells"]
    }


def test_an_engine_that_is_killed_in_the_middle_gives_its_cells_to_the_other_and_all_verdicts_arrive(
    project: Project, second: SecondEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    forget(project)
    killer = threading.Thread(target=kill_when_busy, args=(second,))
    killer.start()
    code, report, said = matrix(capsys, "run", "--engine", DEFAULT, "--engine", second.address)
    killer.join()
    assert code == 0, said
    assert_all_verdicts_arrived(report)
    assert f"{second.address} is lost, its cells move on" in said
    assert second.process.returncode is not None


def kill_when_busy(second: SecondEngine) -> None:
    """Kill the engine as soon as a container of it runs."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if list((second.folder / "data" / "containers").glob("*")):
            second.kill()
            return
        time.sleep(0.02)


def test_an_engine_that_does_not_answer_is_left_out_and_no_engine_at_all_is_an_error(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = f"unix://{tmp_path}/none.sock"
    code, report, said = matrix(capsys, "run", "--engine", none, "--engine", DEFAULT)
    assert code == 0
    assert_all_verdicts_arrived(report)
    forget(project)
    code, report, said = matrix(capsys, "run", "--engine", none)
    assert (code, report["error"]["exit_code"]) == (9, 9)
    assert "left out" in said


def test_an_interrupted_run_leaves_no_container_and_goes_on_from_there(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    forget(project)
    command = [sys.executable, "-c", "from builder.cli import main; main()", "matrix", "run"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith("good: "):
                break
        running.send_signal(signal.SIGINT)
        said = running.stderr.read()
    assert running.returncode == 130, said
    wait_until_no_container_is_left()
    code, report, _ = matrix(capsys, "run")
    assert code == 0
    assert_all_verdicts_arrived(report)
    assert any(cell["known"] for cell in report["cells"])


def wait_until_no_container_is_left() -> None:
    """Wait until no container is there whose process on this machine has ended."""
    client = APIClient(base_url=DEFAULT, version="auto")
    end = time.monotonic() + 30
    while True:
        labels = [each["Labels"] for each in client.containers(all=True, filters={"label": [OWNER_LABEL]})]
        owners = [str(each[OWNER_LABEL]) for each in labels]
        left = [owner for owner in owners if is_local(owner) and is_dead(owner)]
        if not left or time.monotonic() > end:
            break
        time.sleep(0.1)
    client.close()
    assert left == []
