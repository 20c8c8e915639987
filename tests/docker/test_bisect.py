"""`envbuild bisect` on real images: two locks that differ in thirty packages, one of which breaks the stack."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from builder.build.base import base_key
from builder.build.foundation import toolchain_of
from builder.build.image import ImageSettings, assemble, load_image
from builder.build.layerplan import plan_layers
from builder.build.layers import LayerTerms, base_tag, make_base_layer, make_layers
from builder.build.toolchain import toolchain_tag
from builder.build.venv import PREFIX, Venv
from builder.build.wheelfile import read_layout
from builder.cli import run
from builder.commands.state import State
from builder.document import sha256_file
from builder.lock.stage import lock_recipe
from tests.docker.python_rootfs import system_python
from tests.git_repositories import commit, git
from tests.package_index import PackageIndex, serve
from tests.wheels import make_wheel, member
from tests.workshop import DEBIAN, SUITE, Project, add_wheel, make_rootfs, new_project

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


COMMITS = 64
FIRST_BAD = 41
BROKEN = range(22, 32)
GIT_RECIPE = """\
version: 1
name: {name}
target: {{gpu: rtx-pro-6000}}
base: {{debian: {suite}}}
python: "{python}"
stack:
  asks: "1.0"
  turns: {{git: "{repository}", commit: {commit}, build: {{}}}}
smoke: {{require: [program], program: [python3, -m, asks], memory: 256m, timeout: 60}}
"""
ASKS_TURNS = b"from turns import ANSWER\nassert ANSWER < %d, 'turns answers too much'\n" % FIRST_BAD
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "x"\n[project]\nname = "turns"\nversion = "1"\n'
# A stand-in for the compiler: it makes a wheel of one module, or fails as compilers do.
COMPILER = b"""
import base64, hashlib, pathlib, sys, zipfile

source = pathlib.Path("turns.py").read_bytes()
if b"#error" in source:
    sys.exit("turns.py:1: fatal error: #error does not compile")
files = {
    "turns.py": source,
    "turns-1.dist-info/METADATA": b"Metadata-Version: 2.1\\nName: turns\\nVersion: 1\\n",
    "turns-1.dist-info/WHEEL": b"Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
}
record = ""
for name, data in files.items():
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    record += f"{name},sha256={digest},{len(data)}\\n"
files["turns-1.dist-info/RECORD"] = (record + "turns-1.dist-info/RECORD,,\\n").encode()
folder = pathlib.Path(sys.argv[sys.argv.index("--outdir") + 1])
with zipfile.ZipFile(folder / "turns-1-py3-none-any.whl", "w") as archive:
    for name, data in files.items():
        archive.writestr(zipfile.ZipInfo(name), data)
"""


def test_the_first_bad_of_sixty_four_commits_is_found_though_ten_do_not_compile(
    tmp_path: Path, engine: DockerEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commits = [commit(tmp_path / "repository", turns(number)) for number in range(COMMITS)]
    rootfs = make_rootfs(tmp_path / "base.tar", more=("cp", "env"))
    project = new_project(tmp_path, rootfs, lambda: engine, name=f"{NAME}-commits")
    write_recipe(project, tmp_path / "repository", commits[0])
    index = PackageIndex()
    for name in ("build", "pip", "setuptools", "wheel", "ninja", "packaging", "cmake"):
        index.add(name, "1.0")
    asks = add_wheel(project.store, tmp_path, "asks", files=[(member("asks.py"), ASKS_TURNS)])
    index.files["asks"] = {asks.filename: project.store.path(asks.sha256).read_bytes()}
    index.uploaded[asks.filename] = "2026-01-01T00:00:00Z"
    monkeypatch.setenv("ENVBUILD_STORE", str(project.store.root))
    monkeypatch.chdir(project.root)
    project.lock_with([asks])
    write_recipe(project, tmp_path / "repository", commits[-1])  # its lock is stale now, and keeps Debian's part
    with serve(index):
        monkeypatch.setenv("ENVBUILD_INDEX_URL", index.url)
        tag = give_toolchain(project, tmp_path, engine)
        try:
            code, found, said = bisect(capsys, f"recipes/{project.name}.yaml", "turns", commits[0], commits[-1])
        finally:
            for reference in (tag, base_tag(f"sha256:{sha256_file(rootfs)}"), f"envbuild/{project.name}:latest"):
                engine.remove_image(reference)
    assert code == 0, said
    assert found["difference"] == [commits[FIRST_BAD]]
    broken = [step for step in found["steps"] if step["judged"] == "unjudged"]
    assert {step["outcome"]["result"] for step in broken} == {"unbuildable"}, said
    assert "does not compile" in project.store.root.joinpath(broken[0]["outcome"]["log"]).read_text()
    assert len(found["steps"]) <= 2 + 6 + len(BROKEN)
    assert "turns answers too much" in found["bad"]["cause"]


def write_recipe(project: Project, repository: Path, head: str) -> None:
    text = GIT_RECIPE.format(name=project.name, suite=SUITE, python=system_python(), repository=repository, commit=head)
    (project.root / "recipes" / f"{project.name}.yaml").write_text(text, encoding="utf-8")


def turns(number: int) -> dict[str, str]:
    """Return the files of a commit: what it answers, or what does not compile."""
    code = f"ANSWER = {number}\n" if number not in BROKEN else f"#error {number}\n"
    return {"turns.py": code, "pyproject.toml": PYPROJECT}


def give_toolchain(project: Project, folder: Path, engine: DockerEngine) -> str:
    """Give the engine a toolchain with the stand-in compiler, under the key that the recipe's lock asks for."""
    locked = lock_recipe(project.source, State().tools())
    key = toolchain_of(project.source, locked)
    compiler = make_wheel(folder, "compiler", {"build/__init__.py": b"", "build/__main__.py": COMPILER})
    venv = Venv(python=system_python())
    rootfs = project.store.result("base", base_key(DEBIAN))
    assert rootfs is not None
    base = make_base_layer(rootfs["sha256"], store=project.store)
    layers = make_layers(
        plan_layers([read_layout(compiler, venv)]),
        base=(base,),
        terms=LayerTerms(venv=venv, python=rootfs["sha256"], epoch=locked.epoch),
        engine=engine,
        store=project.store,
        on_progress=lambda _: None,
    )
    environment = {"PATH": f"{PREFIX}/bin:/usr/bin:/bin"}
    image = assemble((base, *layers), ImageSettings(epoch=locked.epoch, environment=environment))
    load_image(image, toolchain_tag(key), engine=engine, store=project.store)
    project.store.keep_result("toolchain", key, {"image_id": image.config_digest})
    return toolchain_tag(key)
