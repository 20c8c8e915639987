"""`envbuild bisect` on real images: two locks that differ in thirty packages, one of which breaks the stack."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from builder.build.layers import base_tag
from builder.cli import run
from builder.document import sha256_file
from tests.git_repositories import git
from tests.wheels import member
from tests.workshop import Project, add_wheel, make_rootfs, new_project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.dockerd.client import DockerEngine
    from builder.lock.model import LockedWheel

pytestmark = pytest.mark.docker

NAME = "envbuild-test-bisect"
SMOKE = """\
smoke: {require: [program], program: [python3, -m, asks], memory: 256m, timeout: 60}
"""
ASKS = b"""
from p17 import VERSION
assert VERSION < 2, "p17 answers in degrees, not in radians"
"""
PACKAGES = [f"p{number:02}" for number in range(30)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine: DockerEngine) -> Iterator[Project]:
    """A recipe whose committed lock is good; the lock in the working tree has thirty newer packages."""
    folder = tmp_path_factory.mktemp("bisect")
    rootfs = make_rootfs(folder / "base.tar")
    made = new_project(folder, rootfs, lambda: engine, name=NAME)
    recipe = made.root / "recipes" / f"{NAME}.yaml"
    text = recipe.read_text(encoding="utf-8").replace('{foo: "1.0"}', '{asks: "1.0"}')
    recipe.write_text(text.replace("smoke: {require: [static]}\n", SMOKE), encoding="utf-8")
    asks = add_wheel(made.store, folder, "asks", files=[(member("asks.py"), ASKS)])
    made.lock_with([asks, *wheels(made, folder, 1)])
    git(made.root, "init", "--quiet", "--initial-branch=main")
    git(made.root, "add", ".")
    git(made.root, "commit", "--quiet", "--message", "good")
    made.lock_with([asks, *wheels(made, folder, 2)])
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("ENVBUILD_STORE", str(made.store.root))
        monkeypatch.chdir(made.root)
        yield made
    for reference in {name for image in engine.local_images() for name in image.references}:
        if reference.startswith(f"envbuild/{NAME}:"):
            engine.remove_image(reference)
    engine.remove_image(base_tag(f"sha256:{sha256_file(rootfs)}"))


def wheels(project: Project, folder: Path, version: int) -> list[LockedWheel]:
    return [
        add_wheel(
            project.store,
            folder,
            name,
            version=f"{version}.0",
            files=[(member(f"{name}.py"), f"VERSION = {version}\n".encode())],
        )
        for name in PACKAGES
    ]


def bisect(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    code = run(["bisect", "--json", *arguments])
    said = capsys.readouterr()
    return code, json.loads(said.out), said.err


def test_one_of_thirty_packages_is_found_in_at_most_seven_builds_and_never_built_again(
    project: Project, capsys: pytest.CaptureFixture[str], engine: DockerEngine
) -> None:
    sides = (f"HEAD:lockfiles/{NAME}", f"lockfiles/{NAME}")
    code, ended, _ = bisect(capsys, "--builds", "3", *sides)
    assert (code, ended["end"], ended["builds"]) == (12, "budget ended", 3)
    code, found, said = bisect(capsys, *sides)
    assert (code, found["difference"]) == (0, ["python: p17 1.0 -> 2.0"]), said
    assert found["builds"] <= 7
    assert [step["known"] for step in found["steps"]] == [True] * 3 + [False] * (len(found["steps"]) - 3)
    assert (found["good"]["result"], found["bad"]["result"]) == ("good", "bad")
    assert "degrees, not in radians" in found["bad"]["cause"]
    assert not [image for image in engine.local_images() if any(f"{NAME}:try-" in name for name in image.references)]
    _, again, _ = bisect(capsys, *sides)
    assert all(step["known"] for step in again["steps"])
    assert again["difference"] == found["difference"]


def test_sides_that_are_not_as_they_are_called_are_refused(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    code, ended, _ = bisect(capsys, f"lockfiles/{NAME}", f"HEAD:lockfiles/{NAME}")
    assert code == 2
    assert ended["error"]["message"].startswith("the good side is bad: program:")
