"""`envbuild wheels` from the command line: what it compiles, takes, says and exports, with an engine that is none."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import builder
from builder.build.foundation import toolchain_of
from builder.build.toolchain import toolchain_tag
from builder.cli import run
from builder.commands import state
from builder.engine import ContainerRun, Exit
from builder.lock.stage import locked_recipe
from builder.recipe.source import read_recipe
from builder.store import Store
from tests.fake_registry import FakeRegistry, running
from tests.fakes import FakeEngine
from tests.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT = Path(builder.__file__).parents[1]
CASES = PROJECT / "tests" / "cases" / "fatbin"
RECIPE = Path("recipes/quickstart.yaml")
WHEEL = "nvfp4_kernels-0.1.0-py3-none-linux_x86_64.whl"


@dataclass
class Machine:
    """A project with the quickstart, a store, and an engine whose compilations give `library`, or end with `code`."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    library: str = "sm_120"
    code: int = 0
    engine: FakeEngine = field(default_factory=FakeEngine)

    def use(self, name: str) -> None:
        """Give the machine a store with the toolchain's record, and the engine its image."""
        store = Store(self.folder / name)
        source = read_recipe(self.folder / RECIPE)
        key = toolchain_of(source, locked_recipe(source))
        store.keep_result("toolchain", key, {"image_id": "sha256:1"})
        self.engine.images[toolchain_tag(key)] = "sha256:1"
        self.engine.answer = self.compile
        self.monkeypatch.setenv("ENVBUILD_STORE", str(store.root))

    def compile(self, job: ContainerRun) -> Exit:
        if self.code:
            return Exit(code=self.code, stderr=b"nvfp4.cu(3): error: this is broken\n")
        work = next(mount.source for mount in job.mounts if mount.target == "/build")
        (work / "output").mkdir(exist_ok=True)
        library = (CASES / f"{self.library}.so").read_bytes()
        made = make_wheel(self.folder, "nvfp4_kernels", {"nvfp4_kernels/k.so": library}, version="0.1.0")
        made.path.rename(work / "output" / WHEEL)
        measures = {"cpu_seconds": 9.0, "peak_memory": 2000, "unit_memory": 1000, "cache_hits": 1, "cache_misses": 3}
        (work / "output" / "measures.json").write_text(json.dumps(measures))
        return Exit(code=0, stderr=b"[1/4] nvcc\n", seconds=5.0)

    def wheels(self, *arguments: str) -> tuple[int, str, str]:
        code = run(["wheels", str(RECIPE), *arguments])
        said = self.capsys.readouterr()
        return code, said.out, said.err

    def document(self, *arguments: str) -> Any:
        code, out, err = self.wheels("--json", *arguments)
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Machine:
    for name in ("recipes", "lockfiles"):
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    made = Machine(folder=tmp_path, monkeypatch=monkeypatch, capsys=capsys)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(state, "connect_engine", lambda: made.engine)
    made.use("store")
    return made


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeRegistry]:
    with running(FakeRegistry()) as found:
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        monkeypatch.setenv("ENVBUILD_SHARE", f"{found.host}/team/shared")
        yield found


def test_a_wheel_is_compiled_once_and_described(machine: Machine) -> None:
    (wheel,) = machine.document("--memory", "6g", "--jobs", "3")["wheels"]
    assert wheel["origin"] == "compiled"
    assert wheel["filename"] == WHEEL
    assert wheel["libraries"][0]["codes"] == {"sm_120": 1}
    assert wheel["libraries"][0]["usable"] == "sass"
    assert (wheel["measures"]["cpu_seconds"], wheel["measures"]["cache_hits"]) == (9.0, 1)
    (container,) = machine.engine.runs
    assert (container.memory, container.environment["MAX_JOBS"]) == (6 << 30, "3")
    (again,) = machine.document()["wheels"]
    assert (again["origin"], again["sha256"], again["key"]) == ("store", wheel["sha256"], wheel["key"])
    assert len(machine.engine.runs) == 1


def test_people_read_what_it_took_carries_and_needs(machine: Machine) -> None:
    code, out, _ = machine.wheels()
    assert code == 0
    first, *lines = out.splitlines()
    assert re.fullmatch(rf"{WHEEL} \([0-9.]+ kB, compiled\)", first)
    assert lines == [
        "  took 5 s, 9 s of processors, 2.0 kB of memory at 2 at a time, 1 of 4 files from the compilers' cache",
        "  nvfp4_kernels/k.so: 1 sm_120: runs on 12.0",
        "    needs libc.so.6",
    ]


def test_a_wheel_that_the_target_does_not_run_is_refused_with_its_description(machine: Machine) -> None:
    machine.library = "sm_90a"
    code, out, err = machine.wheels("--json")
    assert code == 7
    assert json.loads(out)["wheels"][0]["libraries"][0]["usable"] is None
    assert "nvfp4_kernels/k.so carries sm_90a only" in err
    assert 'archs: ["12.0"]' in err


def test_a_failure_is_told_at_once_the_next_time_and_retried_on_request(machine: Machine) -> None:
    machine.code = 1
    for expected in (1, 1):
        code, out, _ = machine.wheels("--json")
        assert (code, len(machine.engine.runs)) == (7, expected)
        assert "nvfp4.cu(3): error: this is broken" in json.loads(out)["error"]["evidence"]
    assert "as it did before" in json.loads(out)["error"]["message"]
    machine.code = 0
    assert machine.wheels("--retry")[0] == 0
    assert machine.wheels()[0] == 0


def test_a_second_machine_takes_the_wheel_from_the_registry(machine: Machine, registry: FakeRegistry) -> None:
    (wheel,) = machine.document("--push")["wheels"]
    machine.use("second")
    (pulled,) = machine.document("--pull")["wheels"]
    assert (pulled["origin"], pulled["sha256"]) == ("registry", wheel["sha256"])
    assert len(machine.engine.runs) == 1
    assert registry.asked("PUT .*/manifests/wheel-")


def test_a_wheel_that_is_in_the_store_already_is_pushed(machine: Machine, registry: FakeRegistry) -> None:
    machine.document()
    assert not registry.asked("PUT ")
    machine.document("--push")
    assert registry.asked("PUT .*/manifests/wheel-")
    assert len(machine.engine.runs) == 1


@pytest.mark.usefixtures("registry")
def test_pull_compiles_nothing(machine: Machine) -> None:
    code, _, err = machine.wheels("--pull")
    assert code == 7
    assert re.search(r"no finished wheel of nvfp4-kernels is in the registry under wheel-[0-9a-f]{64}", err)
    assert "--push" in err
    assert machine.engine.runs == []


def test_a_registry_that_is_down_costs_a_warning_and_not_the_build(machine: Machine) -> None:
    machine.monkeypatch.setenv("ENVBUILD_SHARE", "127.0.0.1:1/team/shared")
    code, _, err = machine.wheels("--push")
    assert code == 0
    assert err.count("nothing more is shared through 127.0.0.1:1/team/shared") == 1


def test_push_and_pull_need_a_registry(machine: Machine) -> None:
    code, _, err = machine.wheels("--push")
    assert (code, "ENVBUILD_SHARE" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--memory", "much"], "--memory: 'much' is no amount of memory"),
        (["--memory", "0g"], "--memory: '0g' is no amount of memory"),
        (["--jobs", "0"], "--jobs: '0' is no number of jobs"),
    ],
)
def test_a_bad_limit_is_named(machine: Machine, arguments: list[str], cause: str) -> None:
    code, _, err = machine.wheels(*arguments)
    assert code == 2
    assert cause in err


def test_wheels_are_exported_as_a_folder_and_as_a_simple_index(machine: Machine) -> None:
    (wheel,) = machine.document("--export", "wheelhouse", "--index", "simple")["wheels"]
    bytes_of_it = Path("wheelhouse", WHEEL).read_bytes()
    assert len(bytes_of_it) == wheel["bytes"]
    assert Path("simple/nvfp4-kernels", WHEEL).read_bytes() == bytes_of_it
    page = Path("simple/nvfp4-kernels/index.html").read_text()
    assert f'<a href="{WHEEL}#sha256={wheel["sha256"]}">{WHEEL}</a>' in page
    assert '<a href="nvfp4-kernels/">' in Path("simple/index.html").read_text()
    stored = machine.folder / "store" / "files" / wheel["sha256"][:2] / wheel["sha256"]
    assert not stored.samefile(Path("wheelhouse", WHEEL))


def test_a_folder_that_cannot_be_written_is_named(machine: Machine) -> None:
    Path("taken").touch()
    code, _, err = machine.wheels("--export", "taken/wheels")
    assert code == 2
    assert "taken/wheels cannot be written" in err
