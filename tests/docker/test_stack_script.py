"""The steps of the stack matrix in CI, run here: cells on an engine, results shared through a registry, one page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from builder.build.layers import base_tag
from builder.document import sha256_file
from tests.docker.docker_registry import docker_registry
from tests.grid_project import NAME, grid_project
from tests.unit.test_workflows import ENVBUILD, git, program
from tests.unit.test_workflows import stack as run_stack
from tests.workshop import Project, make_rootfs

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from builder.dockerd.client import DockerEngine

pytestmark = pytest.mark.docker

SMALL = f"""\
version: 1
name: grid
recipe: recipes/{NAME}.yaml
axes: {{torch: ["2.9.1", "2.6.0"]}}
"""
GOOD = "2.9.1"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine: DockerEngine) -> Iterator[Project]:
    rootfs = make_rootfs(tmp_path_factory.mktemp("rootfs") / "base.tar")
    with grid_project(tmp_path_factory.mktemp("grid"), rootfs, lambda: engine) as made:
        (made.root / "matrix.yaml").write_text(SMALL, encoding="utf-8")
        program(made.root / "envbuild", ENVBUILD)
        yield made
    for image in engine.local_images():
        for reference in image.references:
            if reference.startswith(f"envbuild/{NAME}:"):
                engine.remove_image(reference)
    engine.remove_image(base_tag(f"sha256:{sha256_file(rootfs)}"))


def stack(*arguments: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return run_stack(*arguments, cwd=cwd, ENVBUILD=str(cwd / "envbuild"), **more)


def test_a_cell_that_one_machine_proved_is_planned_by_no_other_and_stands_in_its_report(
    project: Project, tmp_path: Path
) -> None:
    with docker_registry(tmp_path / "registry") as host:
        shared = {"ENVBUILD_SHARE": f"{host}/share", "ENVBUILD_INSECURE_REGISTRIES": host, "ENVBUILD_SHARE_PUSH": "1"}
        assert stack("plan", str(tmp_path / "first"), cwd=project.root, **shared).returncode == 0
        outputs = (tmp_path / "first").read_text()
        assert f'"cell": "{GOOD}"' in outputs
        assert "any-rest=true" in outputs
        ended = stack("cell", GOOD, cwd=project.root, **shared)
        assert ended.returncode == 0, ended.stderr
        other = {**shared, "ENVBUILD_STORE": str(tmp_path / "other"), "RESULTS": str(tmp_path / "results")}
        assert stack("plan", str(tmp_path / "second"), cwd=project.root, **other).returncode == 0
    assert "any-rest=false" in (tmp_path / "second").read_text()
    summary = tmp_path / "summary.md"
    ended = stack("report", str(summary), cwd=project.root, **other)
    assert ended.returncode == 0, ended.stderr
    assert f"| {GOOD} | {GOOD} | ✅ good |" in summary.read_text()
    assert "<!doctype html>" in (project.root / "stacks.html").read_text()
    assert 'name="grid"' in (project.root / "stacks.xml").read_text()


def test_a_new_lock_is_proven_and_told_in_the_words_of_its_proposal(project: Project, tmp_path: Path) -> None:
    git(project.root, "init", "--quiet")
    git(project.root, "add", "--all")
    git(project.root, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "--message", "first")
    lock = project.root / "lockfiles" / NAME / "lock.yaml"
    rendered = project.root / "dockerfiles" / NAME / "Dockerfile"
    fake = program(
        tmp_path / "envbuild",
        f'#!/bin/sh\ncase "$1" in lock) echo "# new" >>{lock} ;; '
        f"render) mkdir -p {rendered.parent}; echo FROM >{rendered} ;; "
        f'*) exec {project.root}/envbuild "$@" ;; esac\n',
    )
    ended = run_stack("relock", str(tmp_path / "proposal"), cwd=project.root, ENVBUILD=str(fake))
    assert ended.returncode == 0, ended.stderr
    assert "+# new" in (tmp_path / "proposal" / "locks.patch").read_text()
    assert "+FROM" in (tmp_path / "proposal" / "locks.patch").read_text()
    words = (tmp_path / "proposal" / "words.md").read_text()
    assert "✅ good" in words
    assert f"lockfiles/{NAME}/lock.yaml" in words
    assert json.loads((tmp_path / "proposal" / "stacks.json").read_text())["name"] == "grid"
