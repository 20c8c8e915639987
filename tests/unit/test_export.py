from __future__ import annotations

import json
import re
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from uv import find_uv_bin

from builder.build.assembly import BuiltImage
from builder.build.layers import base_tag
from builder.cli import run
from builder.document import sha256_bytes, sha256_file
from builder.errors import BuildFailedError, EngineError, UsageError
from builder.export import contents
from builder.export.agreement import TOLERATED, Tree, differences
from builder.export.apptainer import definition
from builder.export.parcel import Item, write_folder, write_tar
from builder.export.stage import export_context, export_kit, export_wheels
from builder.lock.lockfile import LOCK, PYLOCK
from builder.settings import settings_from
from builder.store import Store
from builder.tools import Tools
from tests.docker.python_rootfs import system_python
from tests.package_index import PackageIndex, serve
from tests.workshop import Project, add_wheel, new_project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.engine import Engine


def no_engine() -> Engine:
    raise EngineError("no engine runs")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "base.tar").write_bytes(b"base")
    made = new_project(tmp_path, tmp_path / "base.tar", no_engine)
    made.lock_with(made.wheels, tools=[add_wheel(made.store, tmp_path, "pip")])
    return made


@pytest.fixture
def index(project: Project) -> Iterator[PackageIndex]:
    with serve(PackageIndex()) as index:
        for wheel in project.wheels:
            index.files[wheel.name] = {wheel.filename: project.store.path(wheel.sha256).read_bytes()}
            index.uploaded[wheel.filename] = "2026-01-01T00:00:00Z"
        yield index


def tools_with(project: Project, index: PackageIndex) -> Tools:
    settings = settings_from({"ENVBUILD_INDEX_URL": index.url})
    return Tools(settings=settings, store=Store(project.store.root), console=project.tools.console, connect=no_engine)


def lie_over_bar(project: Project, folder: Path) -> None:
    """Lock another wheel, whose `bar.py` lies over that of `bar`."""
    over = add_wheel(project.store, folder, "over", files={"bar.py": b"NAME = 'over'\n"}, requires=["bar==1.0"])
    project.lock_with([*project.wheels, over], tools=[add_wheel(project.store, folder, "pip")])


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_context_holds_what_the_head_comment_of_the_dockerfile_lists(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "context"
    export_context(project.source, project.lock, folder, project.tools)
    assert files(folder) == {
        ".dockerignore",
        "Dockerfile",
        "base.tar",
        "papers/lock.yaml",
        "papers/pylock.toml",
        "papers/pylock.toolchain.toml",
        "papers/recipe.yaml",
        "requirements.txt",
        "tools/compile_inside.py",
        "tools/compile_installed.py",
        "tools/last.txt",
        "tools/pip-1.0-py3-none-any.whl",
        "wheels/bar-1.0-py3-none-any.whl",
        "wheels/foo-1.0-py3-none-any.whl",
    }
    comment = [
        line for line in (folder / "Dockerfile").read_text(encoding="utf-8").splitlines() if line.startswith("#")
    ]
    listed = [match[1] for line in comment if (match := re.match(r"#   (\S+) ", line))]
    assert listed == ["base.tar", "wheels/", "tools/", "papers/"]
    assert all((folder / name).exists() for name in listed)


def test_the_context_names_the_wheels_that_lie_over_others_for_pip_to_install_them_last(
    project: Project, tmp_path: Path
) -> None:
    export_context(project.source, project.lock, tmp_path / "one", project.tools)
    assert (tmp_path / "one" / "tools" / contents.LAST).read_bytes() == b""
    lie_over_bar(project, tmp_path)
    export_context(project.source, project.lock, tmp_path / "two", project.tools)
    assert (tmp_path / "two" / "tools" / contents.LAST).read_text() == "over==1.0 over-1.0-py3-none-any.whl\n"


def test_the_dockerfile_copies_nothing_that_the_context_lacks(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "context"
    export_context(project.source, project.lock, folder, project.tools)
    text = (folder / "Dockerfile").read_text(encoding="utf-8")
    named = re.findall(r"^(?:COPY|ADD) (?!--from)(\S+) ", text, re.MULTILINE) + re.findall(
        r"/build/(tools/\S+?)(?:/pip)? ", text
    )
    assert len(named) == 9
    assert all((folder / name).exists() for name in named), named


def test_files_that_leave_are_copies_and_not_the_stores_own(project: Project, tmp_path: Path) -> None:
    export_wheels(project.source, project.lock, tmp_path / "out", project.tools)
    for path in (tmp_path / "out" / "wheels").iterdir():
        path.write_bytes(b"edited")
    for wheel in project.wheels:
        assert sha256_file(project.store.path(wheel.sha256)) == wheel.sha256


def uv_install(site: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [find_uv_bin(), "pip", "install", "--offline", "--no-index", "--no-cache", "--no-config"]
    python = ["--python", f"/usr/bin/python{system_python()}", "--target", str(site)]
    return subprocess.run([*command, *python, *arguments], check=False, capture_output=True, text=True)


def test_uv_installs_from_the_exported_lock_as_it_is(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    export_wheels(project.source, project.lock, folder, project.tools)
    committed = project.root / "lockfiles" / "small" / PYLOCK
    assert (folder / PYLOCK).read_bytes() == committed.read_bytes()
    done = uv_install(tmp_path / "site", "-r", folder / PYLOCK)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "bar.py").is_file()
    assert (tmp_path / "site" / "foo" / "platform_part.py").is_file()
    assert (folder / contents.LAST).read_bytes() == b""


def test_uv_gets_the_files_of_the_image_with_the_wheels_that_lie_over_others_once_more(
    project: Project, tmp_path: Path
) -> None:
    lie_over_bar(project, tmp_path)
    folder, bar = tmp_path / "out", tmp_path / "site" / "bar.py"
    export_wheels(project.source, project.lock, folder, project.tools)
    assert uv_install(tmp_path / "site", "-r", folder / PYLOCK).returncode == 0
    bar.write_text("whatever came last")
    again = ["--no-deps", "--find-links", str(folder / "wheels"), "--reinstall"]
    for line in (folder / contents.LAST).read_text().splitlines():
        done = uv_install(tmp_path / "site", *again, line.split()[0])
        assert done.returncode == 0, done.stderr
    assert bar.read_text() == "NAME = 'over'\n"


def test_uv_refuses_an_exported_wheel_that_was_changed(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    export_wheels(project.source, project.lock, folder, project.tools)
    bar = folder / "wheels" / "bar-1.0-py3-none-any.whl"
    data = bytearray(bar.read_bytes())
    data[10] ^= 1  # the time of a file: the archive stays whole
    bar.write_bytes(data)
    done = uv_install(tmp_path / "site", "-r", folder / PYLOCK)
    assert done.returncode != 0
    assert "Hash mismatch" in done.stderr


def test_a_damaged_wheel_is_fetched_again_and_never_exported(
    project: Project, index: PackageIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = project.wheels[0]
    path = project.store.path(wheel.sha256)
    path.write_bytes(path.read_bytes()[:-3])
    export_wheels(project.source, project.lock, tmp_path / "out", tools_with(project, index))
    assert sha256_file(tmp_path / "out" / "wheels" / wheel.filename) == wheel.sha256
    assert [line for line in index.asked if line.startswith("/files/")] == [f"/files/{wheel.filename}"]
    said = capsys.readouterr().err
    assert wheel.sha256 in said
    assert "is damaged" in said


def test_a_kit_is_a_project_and_a_store_that_need_nothing_else(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "kit"
    export_kit(project.source, project.lock, folder, project.tools)
    assert {"README.txt", "recipes/small.yaml", f"lockfiles/small/{LOCK}"} <= files(folder)
    moved = Project(root=folder, store=Store(folder / "store"), engine=no_engine, name="small")
    assert moved.lock.digest == project.lock.digest
    before = files(folder / "store" / "files")
    export_context(moved.source, moved.lock, tmp_path / "context", moved.tools)  # no index, no mirror, no engine
    assert files(folder / "store" / "files") == before
    wanted = {wheel.sha256 for wheel in (*moved.lock.wheels, *moved.lock.toolchain_wheels)} | {sha256_bytes(b"base")}
    assert {Path(name).name for name in before} == wanted


def test_equal_kits_are_equal_bytes_below_one_folder(project: Project, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        export_kit(project.source, project.lock, tmp_path / name / "kit.tar", project.tools)
    assert (tmp_path / "one" / "kit.tar").read_bytes() == (tmp_path / "two" / "kit.tar").read_bytes()
    with tarfile.open(tmp_path / "one" / "kit.tar") as archive:
        tops = {name.split("/")[0] for name in archive.getnames()}
        archive.extractall(tmp_path / "there", filter="data")
    assert tops == {"kit"}
    assert "kit/store/files" in (tmp_path / "there" / "kit" / "README.txt").read_text().replace("store", "kit/store")
    moved = Project(root=tmp_path / "there" / "kit", store=project.store, engine=no_engine, name="small")
    assert moved.lock == project.lock


def test_a_kit_holds_the_folders_beside_the_recipe_with_their_modes(tmp_path: Path) -> None:
    items = [Item(name="a/run", content=b"#!/bin/sh\n", mode=0o755), Item(name="a/text", content=b"x")]
    write_folder(items, tmp_path / "out")
    write_tar(items, tmp_path / "out.tar")
    assert [(tmp_path / "out/a" / name).stat().st_mode & 0o777 for name in ("run", "text")] == [0o755, 0o644]
    with tarfile.open(tmp_path / "out.tar") as archive:
        assert [(item.name, item.mode) for item in archive] == [("out/a/run", 0o755), ("out/a/text", 0o644)]


def test_a_folder_that_holds_something_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        write_folder([Item(name="a", content=b"x")], tmp_path / "out")
    assert files(tmp_path / "out") == {"thesis.txt"}


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    items = [Item(name="a", content=b"x"), Item(name="b", content=tmp_path / "missing")]
    for write, target in ((write_folder, tmp_path / "out"), (write_tar, tmp_path / "out.tar")):
        with pytest.raises(BuildFailedError, match=r"out.* cannot be written: No such file"):
            write(items, target)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_says_what_it_wrote(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVBUILD_STORE", str(project.store.root))
    recipe = str(project.root / "recipes" / "small.yaml")
    assert run(["export", recipe, "--wheels", str(tmp_path / "out"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {"recipe": "small", "written": {"wheels": str(tmp_path / "out")}}
    assert run(["export", recipe]) == 2
    taken = tmp_path / "image.tar"
    taken.write_bytes(b"mine")
    assert run(["export", recipe, "--wheels", str(tmp_path / "other"), "--oci", str(taken)]) == 2
    assert f"{taken} is there already" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    (project.root / "lockfiles" / "small" / LOCK).unlink()
    assert run(["export", recipe, "--wheels", str(tmp_path / "more")]) == 5


def test_an_apptainer_definition_names_the_image_or_the_archive(project: Project) -> None:
    image = BuiltImage(reference="envbuild/small:latest", image_id="sha256:1", manifest_digest="sha256:2", installed=())
    recipe, lock = project.source.recipe, project.lock
    local = definition(recipe, lock, image, path=Path("small.def"))
    assert local.splitlines()[:2] == ["Bootstrap: docker-daemon", "From: envbuild/small:latest"]
    packed = definition(recipe, lock, image, path=Path("small.def"), archive=Path("small.oci.tar"))
    assert packed.splitlines()[:2] == ["Bootstrap: oci-archive", "From: small.oci.tar"]
    assert "\n" in recipe.description
    assert [line for line in local.splitlines()[2:8] if line and not line.startswith("#")] == ["%labels"]
    assert '    exec "${@:-python3}"\n' in local
    assert lock.digest in local


FILE = [0o100000, 0o644, 0, 0, "aa", {}]


def tree(**changes: object) -> Tree:
    files = {"/a": FILE, "/opt/foo-1.0.dist-info/INSTALLER": FILE}
    return Tree(files={**files, **changes}, config={"$PATH": "/bin"})  # type: ignore[dict-item]


def test_equal_trees_have_no_differences() -> None:
    assert differences(tree(), tree()) == ()


def test_variables_labels_and_the_command_are_compared() -> None:
    one = Tree(files={}, config={"$PATH": "/bin", "label a": "1", "Cmd": ["python3"]})
    other = Tree(files={}, config={"$PATH": "/bin", "label b": "1", "Cmd": ["sh"]})
    assert differences(one, other) == (
        "Cmd: ['python3'] from the Dockerfile, ['sh'] in the assembled image",
        "label a: '1' from the Dockerfile, None in the assembled image",
        "label b: None from the Dockerfile, '1' in the assembled image",
    )


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (0, 0o120000, "kind (0o120000 from the Dockerfile, 0o100000 in the assembled image)"),
        (1, 0o755, "mode (0o755 from the Dockerfile, 0o644 in the assembled image)"),
        (2, 5, "owner (5 from the Dockerfile, 0 in the assembled image)"),
        (3, 5, "group (5 from the Dockerfile, 0 in the assembled image)"),
        (4, "bb", "content (bb from the Dockerfile, aa in the assembled image)"),
        (5, {"security.capability": "01"}, "extended attributes ({'security.capability': '01'} from the Dockerfile"),
    ],
)
def test_every_fact_of_a_path_is_compared(place: int, value: object, said: str) -> None:
    (line,) = differences(tree(**{"/a": [*FILE[:place], value, *FILE[place + 1 :]]}), tree())
    assert line.startswith(f"/a: {said}")


def test_only_the_listed_differences_are_tolerated() -> None:
    assert [(item.ending, item.what) for item in TOLERATED] == [
        (".dist-info/INSTALLER", "content"),
        (".dist-info/REQUESTED", "only from the Dockerfile"),
    ]
    other = {"/opt/foo-1.0.dist-info/INSTALLER": [*FILE[:4], "bb", {}], "/opt/foo-1.0.dist-info/REQUESTED": FILE}
    assert differences(tree(**other), tree()) == ()
    assert differences(tree(), tree(**{"/opt/foo-1.0.dist-info/REQUESTED": FILE})) == (
        "/opt/foo-1.0.dist-info/REQUESTED: only in the assembled image",
    )
    mode = {"/opt/foo-1.0.dist-info/INSTALLER": [FILE[0], 0o600, *FILE[2:]]}
    assert len(differences(tree(**mode), tree())) == 1


def test_a_base_has_a_tag_of_its_own() -> None:
    assert base_tag(f"sha256:{'ab' * 32}") == f"envbuild/base:{'ab' * 8}"
