"""The whole road, from the command line, on real parts: what the README promises."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import docker
import pytest

from builder.document import sha256_file
from builder.settings import settings_from
from builder.store import Store
from tests.command_line import ENVBUILD, PROJECT, QUICKSTART, Ended, envbuild

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.engine import Engine

pytestmark = [pytest.mark.docker, pytest.mark.network]

COMPILED = "recipes/quickstart/kernels/csrc/nvfp4.cu"


def results(store: Path, kind: str) -> set[str]:
    return {path.name for path in (store / "results" / kind).glob("*")}


@pytest.fixture(scope="session")
def store() -> Path:
    return settings_from().store


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A copy of the project's recipes with their locks, for a test to change."""
    for name in ("recipes", "lockfiles", "dockerfiles"):
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=shutil.ignore_patterns("verdict.json", "__pycache__"))
    return tmp_path


def test_the_quickstart_is_good_and_says_what_was_seen(quickstart: Ended, engine: Engine) -> None:
    assert quickstart.code == 0, quickstart.err
    verdict = quickstart.document
    assert verdict["result"] == "good"
    assert verdict["image_id"] == engine.image_id("envbuild/quickstart:latest")
    checks = {check["name"]: check for check in verdict["checks"]}
    assert {check["outcome"] for check in checks.values()} == {"passed"}
    assert checks["cpu-decode"]["figures"]["tokens_right"] == 96
    assert any("sm_120" in line for line in checks["static.device-code"]["evidence"] if "libnvfp4" in line)


@pytest.mark.usefixtures("quickstart")
def test_a_second_run_has_nothing_to_do(workspace: Path) -> None:
    ended = envbuild(workspace, "make", QUICKSTART)
    assert ended.code == 0, ended.err
    assert ended.steps == []
    for stage in ("lock", "Dockerfiles", "wheel", "image", "verdict"):
        assert f"  = {stage}" in ended.err


@pytest.mark.usefixtures("quickstart")
def test_a_comment_in_the_recipe_rebuilds_nothing(workspace: Path) -> None:
    recipe = workspace / QUICKSTART
    recipe.write_text("# a new thought\n" + recipe.read_text())
    ended = envbuild(workspace, "make", "--locked", QUICKSTART)
    assert (ended.code, ended.steps) == (0, []), ended.err


@pytest.mark.usefixtures("quickstart")
def test_one_character_of_the_kernel_compiles_that_wheel_and_nothing_else(workspace: Path, store: Path) -> None:
    source = workspace / COMPILED
    source.write_text(source.read_text() + f"// {time.time_ns()}\n")
    before = {kind: results(store, kind) for kind in ("wheel", "toolchain", "base", "layer")}
    ended = envbuild(workspace, "make", "--locked", QUICKSTART)
    assert ended.code == 0, ended.err
    new = {kind: len(results(store, kind) - before[kind]) for kind in before}
    # A comment changes no byte of the wheel, so no layer and no image either: the compile is reproducible.
    assert new == {"wheel": 1, "toolchain": 0, "base": 0, "layer": 0}
    assert "= image envbuild/quickstart:latest" in ended.err


@pytest.mark.usefixtures("quickstart")
def test_a_changed_kernel_makes_one_layer_and_is_proven_again(workspace: Path, store: Path) -> None:
    source = workspace / COMPILED
    source.write_text(source.read_text().replace("version() { return 1; }", f"version() {{ return {os.getpid()}; }}"))
    before = {kind: results(store, kind) for kind in ("toolchain", "base", "layer")}
    ended = envbuild(workspace, "make", "--locked", "--json", QUICKSTART)
    new = {kind: len(results(store, kind) - before[kind]) for kind in before}
    assert new == {"toolchain": 0, "base": 0, "layer": 1}
    assert [step.split(" ")[0] for step in ended.steps] == ["compile", "assemble", "prove"]
    assert ended.code == 8
    installed = next(check["figures"] for check in ended.document["checks"] if check["name"] == "static.installed")
    assert 0 < installed["files"] - installed["recalled"] < 500, "the files of the one new layer"
    assert f"ImportError: libnvfp4.so has C ABI version {os.getpid()}, this package needs 1" in ended.err


@pytest.mark.usefixtures("quickstart")
@pytest.mark.parametrize(
    ("recipe", "cause"),
    [
        ("broken-unknown-model", "cpu-decode: Transformers 5.1.0 does not know the model type glm_moe_dsa"),
        ("broken-rope-half-split", "cpu-decode: GlmMoeDsaForCausalLM of Transformers 5.8.1: 94 of 96 tokens are wrong"),
        ("broken-kernel-sm90", "static.device-code: nvfp4_kernels/libnvfp4.so carries sm_90 only"),
    ],
)
def test_a_recipe_that_must_be_bad_is_marked_bad_with_its_cause(workspace: Path, recipe: str, cause: str) -> None:
    ended = envbuild(workspace, "make", "--locked", "--json", f"recipes/examples/{recipe}.yaml")
    assert ended.code == 8, ended.err
    assert ended.document["cause"].startswith(cause)
    assert json.loads((workspace / f"lockfiles/{recipe}/verdict.json").read_text())["result"] == "bad"
    assert f"bad: {cause}" in ended.err


@pytest.mark.usefixtures("quickstart")
def test_a_kernel_that_does_not_compile_is_named_with_the_compilers_own_words(workspace: Path, store: Path) -> None:
    source = workspace / COMPILED
    source.write_text(source.read_text() + "#error this kernel is broken\n")
    before = results(store, "wheel")
    ended = envbuild(workspace, "make", "--locked", "--retry", "--json", QUICKSTART)  # the store knows earlier runs
    assert ended.code == 7, ended.err
    error = ended.document["error"]
    assert error["message"] == "compiling nvfp4-kernels failed with exit code 1"
    assert any("this kernel is broken" in line for line in error["evidence"])
    log = Path(error["remedy"].removeprefix("the whole log is in "))
    assert "this kernel is broken" in log.read_text()
    assert results(store, "wheel") == before
    again = envbuild(workspace, "make", "--locked", "--json", QUICKSTART)
    assert again.code == 7
    assert again.document["error"]["message"] == f"{error['message']}, as it did before with exactly these inputs"


def test_a_stale_lock_is_refused_and_the_changed_field_is_named(workspace: Path) -> None:
    recipe = workspace / QUICKSTART
    recipe.write_text(recipe.read_text().replace('transformers: "5.24.0"', 'transformers: "5.23.0"'))
    ended = envbuild(workspace, "make", "--locked", QUICKSTART)
    assert ended.code == 5
    assert "python.stack.transformers.version (5.24.0 -> 5.23.0)" in ended.err
    assert "envbuild lock RECIPE" in ended.err


def test_without_an_engine_the_way_to_start_one_is_said(workspace: Path, tmp_path: Path) -> None:
    ended = envbuild(workspace, "make", "--locked", QUICKSTART, DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    assert ended.code == 9
    assert "docker" in ended.err.lower()
    assert "→" in ended.err


class Running:
    """A call of the command line that a test watches and ends."""

    def __init__(self, workspace: Path, store: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*ENVBUILD, "--verbose", *arguments],
            cwd=workspace,
            env={**os.environ, "PYTHONPATH": str(PROJECT), "ENVBUILD_STORE": str(store)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def until(self, text: str) -> bool:
        """Wait for a line; False if the call ended without it."""
        return any(text in line for line in self.process.stderr or ())

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        if self.process.stderr is not None:
            self.process.stderr.read()
            self.process.stderr.close()
        return self.process.wait()


@pytest.fixture
def second_store(quickstart: Ended, store: Path) -> Iterator[Path]:
    """A store that knows the base and the toolchain and has all files that were fetched, but nothing that was built."""
    assert quickstart.code == 0, quickstart.err
    folder = store.parent / f"envbuild-test-{uuid.uuid4().hex[:12]}"  # on the same disk, so that links work
    Store(folder)
    shutil.copytree(store / "files", folder / "files", copy_function=os.link, dirs_exist_ok=True)
    for kind in ("base", "toolchain"):
        shutil.copytree(store / "results" / kind, folder / "results" / kind)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def others() -> set[str]:
    """The containers of another envbuild that works on this engine."""
    return containers()


def test_killed_in_mid_build_it_goes_on_and_takes_no_half_written_file_for_a_finished_one(
    workspace: Path, second_store: Path, engine: Engine, others: set[str]
) -> None:
    for place in ("running bdist_wheel", "layer of", "load ..."):
        running = Running(workspace, second_store, "make", "--locked", QUICKSTART)
        seen = running.until(place)
        assert (seen, running.end(signal.SIGKILL)) == (True, -signal.SIGKILL), place
    ended = envbuild(workspace, "make", "--locked", "--json", QUICKSTART, ENVBUILD_STORE=str(second_store))
    assert ended.code == 0, ended.err
    assert ended.document["result"] == "good"
    made_here = [path for path in (second_store / "files").rglob("*") if path.is_file() and path.stat().st_nlink == 1]
    assert made_here
    assert [path for path in made_here if sha256_file(path) != path.name] == []
    assert list((second_store / "tmp").iterdir()) == []
    assert ended.document["image_id"] == engine.image_id("envbuild/quickstart:latest")
    assert containers() <= others


def test_interrupted_it_leaves_no_container_behind(workspace: Path, second_store: Path, others: set[str]) -> None:
    shutil.copytree(settings_from().store / "results", second_store / "results", dirs_exist_ok=True)
    shutil.rmtree(second_store / "results" / "verdict")
    running = Running(workspace, second_store, "make", "--locked", QUICKSTART)
    seen, while_running = running.until("load ..."), containers()
    assert (seen, running.end(signal.SIGINT)) == (True, 130)
    assert while_running - others != set()
    assert containers() <= others


def containers() -> set[str]:
    client = docker.from_env()
    try:
        return {container.name or "" for container in client.containers.list(all=True, filters={"label": "envbuild"})}
    finally:
        client.close()
