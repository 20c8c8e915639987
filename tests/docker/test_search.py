"""`envbuild search` on real images: a stand-in server with three wrong settings and one wrong pin."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from builder.build.layers import base_tag
from builder.cli import run
from builder.document import sha256_file
from tests.package_index import PackageIndex, serve
from tests.standin_server import server_files, transformers_files
from tests.workshop import Project, add_wheel, make_rootfs, new_project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.dockerd.client import DockerEngine

pytestmark = pytest.mark.docker

NAME = "envbuild-test-search"
PROJECT = Path(__file__).parents[2]
STACK = 'stack: {standin: "1.0", transformers: "4.57.1"}'
SERVE = """\
serve:
  engine: sglang
  args: {attention-backend: triton, cuda-graph-max-bs: 512}
  env: {SGLANG_ENABLE_JIT_DEEPGEMM: "1"}
smoke: {require: [static, program], program: [python3, -m, standin], memory: 512m, timeout: 60}
"""
AXES = (
    "attention-backend=triton,flashinfer",
    "cuda-graph-max-bs=512,8",
    "SGLANG_ENABLE_JIT_DEEPGEMM=1,0",
    "transformers=4.57.1,5.2.0",
)
GOOD = {
    "serve.args.attention-backend": "flashinfer",
    "serve.args.cuda-graph-max-bs": 8,
    "serve.env.SGLANG_ENABLE_JIT_DEEPGEMM": "0",
    "stack.transformers.version": "5.2.0",
}


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory: pytest.TempPathFactory, engine: DockerEngine) -> Iterator[Path]:
    path = make_rootfs(tmp_path_factory.mktemp("rootfs") / "base.tar")
    yield path
    engine.remove_image(base_tag(f"sha256:{sha256_file(path)}"))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, rootfs: Path, engine: DockerEngine) -> Iterator[Project]:
    """A locked recipe that is wrong in four places; the index has the wheels of both Transformers."""
    tmp_path = tmp_path_factory.mktemp("search")
    made = new_project(tmp_path, rootfs, lambda: engine, name=NAME)
    recipe = made.root / "recipes" / f"{NAME}.yaml"
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(
        text.replace('stack: {foo: "1.0"}', STACK).replace("smoke: {require: [static]}\n", SERVE), encoding="utf-8"
    )
    wheels = [
        add_wheel(made.store, tmp_path, "standin", files=server_files()),
        *(
            add_wheel(made.store, tmp_path, "transformers", version=version, files=transformers_files(version))
            for version in ("4.57.1", "5.2.0")
        ),
    ]
    made.lock_with(wheels[:2])
    index = PackageIndex()
    index.add("pip", "25.0")  # what the Dockerfile of every recipe installs with
    for wheel in wheels:
        index.files.setdefault(wheel.name, {})[wheel.filename] = made.store.path(wheel.sha256).read_bytes()
        index.uploaded[wheel.filename] = "2026-01-01T00:00:00Z"
    with serve(index), pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("ENVBUILD_INDEX_URL", index.url)
        monkeypatch.setenv("ENVBUILD_STORE", str(made.store.root))
        monkeypatch.chdir(made.root)
        yield made
    for image in engine.local_images():
        for reference in image.references:
            if reference.startswith(f"envbuild/{NAME}:"):
                engine.remove_image(reference)


def search(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    code = run(["search", f"recipes/{NAME}.yaml", "--json", *arguments])
    said = capsys.readouterr()
    return code, json.loads(said.out), said.err


def forget(project: Project) -> None:
    """Forget every verdict; the images stay."""
    for kind in ("trial", "verdict"):
        shutil.rmtree(project.store.root / "results" / kind, ignore_errors=True)


def axis_options(*axes: str) -> list[str]:
    return [option for axis in axes for option in ("--axis", axis)]


def test_over_given_axes_the_good_one_is_found_with_fewer_than_half_of_the_grids_runs(
    project: Project, capsys: pytest.CaptureFixture[str], engine: DockerEngine
) -> None:
    code, ledger, said = search(capsys, *axis_options(*AXES))
    assert (code, ledger["end"], ledger["edits"]) == (0, "good", GOOD), said
    assert ledger["variants"] == 16
    assert len(ledger["rows"]) < 8
    assert ledger["builds"] == 2
    assert [row["outcome"]["result"] for row in ledger["rows"]] == ["bad"] * (len(ledger["rows"]) - 1) + ["good"]
    assert json.loads(Path(ledger["file"]).read_text())["edits"] == GOOD
    assert not [image for image in engine.local_images() if any(f"{NAME}:try-" in name for name in image.references)]
    assert (project.root / "lockfiles" / NAME / "verdict.json").exists() is False


def test_without_axes_the_diagnoses_say_what_to_try(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    code, ledger, said = search(capsys, "--smallest")
    assert (code, ledger["edits"]) == (0, GOOD), said
    assert len(ledger["rows"]) < ledger["variants"] / 2
    first = ledger["rows"][0]["outcome"]
    assert [suspicion["kind"] for suspicion in first["suspicions"]] == ["unknown-model-type"]


def test_a_second_search_runs_nothing_again(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    _, first, _ = search(capsys, *axis_options(*AXES))
    code, second, said = search(capsys, *axis_options(*AXES))
    assert code == 0
    assert [row["known"] for row in second["rows"]] == [True] * len(first["rows"])
    assert "run 1" not in said
    _, _, said = search(capsys, "--save-finding", *axis_options(*AXES))
    finding = next((project.root / "findings").glob("*.yaml"))
    assert f"wrote {finding}" in said
    learned = yaml.safe_load(finding.read_text())["findings"][0]
    assert {edit["path"] for edit in learned["edits"]} <= GOOD.keys()
    assert run(["diagnose", "--explain", learned["class"]]) == 0
    assert finding.stem in capsys.readouterr().out


def test_killed_in_the_middle_it_goes_on_where_it_was(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    forget(project)
    arguments = ["search", f"recipes/{NAME}.yaml", *axis_options(*AXES)]
    killed = subprocess.Popen(
        [sys.executable, "-c", "from builder.cli import main; main()", *arguments],
        cwd=project.root,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert killed.stderr is not None
    seen = [line for line in iter(killed.stderr.readline, "") if "run 2" in line][:1]
    for line in iter(killed.stderr.readline, ""):
        seen.append(line)
        break
    killed.send_signal(signal.SIGKILL)
    killed.stderr.close()
    killed.wait()
    code, ledger, _ = search(capsys, *axis_options(*AXES))
    assert (code, ledger["edits"]) == (0, GOOD)
    assert sum(row["known"] for row in ledger["rows"]) >= 2


def test_the_budget_ends_the_search_and_a_failure_that_no_axis_touches_ends_it_without_a_good_one(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    forget(project)
    for kind in ("image", "layer"):
        shutil.rmtree(project.store.root / "results" / kind, ignore_errors=True)
    code, ledger, _ = search(capsys, "--builds", "1", *axis_options(*AXES))
    assert (code, ledger["end"], ledger["builds"]) == (12, "budget ended", 1)
    code, ledger, _ = search(capsys, *axis_options("transformers=5.2.0", "odd=left"))
    assert (code, ledger["end"]) == (8, "none good")
    assert "out of memory" in ledger["rows"][-1]["outcome"]["cause"].lower()
