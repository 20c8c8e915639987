"""A store that mends itself, shares its work, is collected and taken along: on a real engine, without a network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.build.layers import base_tag
from builder.build.layout import read_layout_image
from builder.build.stage import build_recipe
from builder.collect.stage import collect, find_garbage
from builder.console import Console
from builder.document import sha256_file
from builder.engine import ContainerRun
from builder.export.stage import export_kit, export_layout
from builder.settings import settings_from
from builder.store import Store
from builder.tools import Tools
from tests.package_index import PackageIndex, serve
from tests.workshop import Project, add_wheel, make_rootfs, new_project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.dockerd.client import DockerEngine

pytestmark = pytest.mark.docker

NAME = "envbuild-test-keep"
CALL = "from builder.cli import main; main()"
UMASK = 'umask 077; exec "$@"'
LARGE = b"".join(b"%d\n" % number for number in range(4_000_000))  # 31 MB


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory: pytest.TempPathFactory, engine: DockerEngine) -> Iterator[Path]:
    path = make_rootfs(tmp_path_factory.mktemp("rootfs") / "base.tar")
    yield path
    engine.remove_image(base_tag(f"sha256:{sha256_file(path)}"))


@pytest.fixture
def project(tmp_path: Path, rootfs: Path, engine: DockerEngine) -> Iterator[Project]:
    made = new_project(tmp_path, rootfs, lambda: engine, name=NAME)
    yield made
    engine.remove_image(f"envbuild/{NAME}:latest")


def command(project: Project, *arguments: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "ENVBUILD_STORE": str(project.store.root),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    return subprocess.Popen(
        [*before, sys.executable, "-c", CALL, *arguments],
        cwd=project.root,
        env=environment,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def forget_image(project: Project, engine: DockerEngine) -> None:
    """Make the engine lose the image, and with it the layers above the base."""
    engine.remove_image(f"envbuild/{NAME}:latest")


def keys(store: Store, kind: str) -> list[str]:
    return [key for found, key in store.results() if found == kind]


def records(store: Store, kind: str) -> list[dict[str, str]]:
    return [store.result(kind, key) or {} for found, key in store.results() if found == kind]


@pytest.mark.parametrize("damage", ["one bit flipped", "cut short"])
def test_a_damaged_layer_is_found_when_it_is_loaded_and_made_again(
    project: Project, engine: DockerEngine, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    image = build_recipe(project.source, project.lock, project.tools)
    forget_image(project, engine)
    [made] = [value for key in keys(project.store, "image") if (value := project.store.result("image", key))]
    top = project.store.result("layer", made["layers"][-1]) or {}  # no other image on this engine holds this one
    path = project.store.path(top["digest"].removeprefix("sha256:"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] if damage == "cut short" else bytes([*whole[:-20], whole[-20] ^ 4, *whole[-19:]]))
    again = build_recipe(project.source, project.lock, project.tools)
    assert again.image_id == image.image_id == engine.image_id(image.reference)
    assert path.read_bytes() == whole
    said = capsys.readouterr().err
    assert f"{path} is damaged" in said
    assert "it is fetched or made again" in said


def test_a_damaged_wheel_is_found_before_a_layer_is_made_of_it_and_fetched_again(
    project: Project, engine: DockerEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    foo = next(wheel for wheel in project.wheels if wheel.name == "foo")
    path = project.store.path(foo.sha256)
    whole = path.read_bytes()
    with serve(
        PackageIndex(files={"foo": {foo.filename: whole}}, uploaded={foo.filename: "2026-01-01T00:00:00Z"})
    ) as index:
        path.write_bytes(whole.replace(b"\x00\x00\xed\x81", b"\x00\x00\xa4\x81"))  # no script is executable any more
        assert path.read_bytes() != whole
        settings = settings_from({"ENVBUILD_INDEX_URL": index.url})
        store = Store(project.store.root)  # a process of another day has proven nothing
        tools = Tools(settings=settings, store=store, console=Console(), connect=lambda: engine)
        image = build_recipe(project.source, project.lock, tools)
    assert path.read_bytes() == whole
    assert f"{path} is damaged" in capsys.readouterr().err
    ended = engine.run(ContainerRun(image=image.image_id, command=("/opt/env/bin/foo",)))
    assert ended.stdout.startswith(b"/opt/env "), ended.stderr


def test_damaged_byte_code_is_compiled_again(project: Project, engine: DockerEngine) -> None:
    image = build_recipe(project.source, project.lock, project.tools)
    forget_image(project, engine)
    for kind, key in list(project.store.results()):
        if kind in {"layer", "image"}:
            project.store.forget_result(kind, key)
    paths = [project.store.path(record["sha256"]) for record in records(project.store, "bytecode")]
    for path in paths:
        path.write_bytes(path.read_bytes()[:-30])
    store = Store(project.store.root)
    tools = Tools(settings=settings_from({}), store=store, console=Console(), connect=lambda: engine)
    assert build_recipe(project.source, project.lock, tools).image_id == image.image_id
    assert [sha256_file(path) for path in paths] == [path.name for path in paths]


def test_another_store_time_zone_umask_and_number_of_cores_give_the_same_manifest(
    project: Project, rootfs: Path, engine: DockerEngine, tmp_path: Path
) -> None:
    """Large enough that the layers are made in processes of their own, where there is more than one core."""
    (tmp_path / "there").mkdir()
    other = new_project(tmp_path / "there", rootfs, lambda: engine, name=NAME)
    digests = []
    for each, before in (
        (project, ("env", "TZ=Asia/Tokyo", "LC_ALL=C.UTF-8")),
        (other, ("env", "TZ=America/Lima", "PYTHONHASHSEED=7", "taskset", "--cpu-list", "0", "sh", "-c", UMASK, "sh")),
    ):
        made = [
            add_wheel(each.store, each.root, name, files={f"{name}/lines.txt": LARGE}) for name in ("first", "second")
        ]
        each.lock_with([*each.wheels, *made])
        out, err = command(each, "build", f"recipes/{NAME}.yaml", "--json", before=before).communicate(timeout=120)
        assert out, err
        digests.append(json.loads(out)["manifest_digest"])
        forget_image(each, engine)
    assert digests[0] == digests[1]
    assert len(records(project.store, "layer")) > 5
    assert sorted(record["digest"] for record in records(project.store, "layer")) == sorted(
        record["digest"] for record in records(other.store, "layer")
    )


def test_an_image_of_zstd_layers_is_the_same_image_and_an_old_engine_is_warned_of(
    project: Project, engine: DockerEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = build_recipe(project.source, project.lock, project.tools)
    before = [line["manifest_digest"] for line in records(project.store, "image")]
    forget_image(project, engine)
    path = project.source.path
    path.write_text(f"{path.read_text(encoding='utf-8')}compression: zstd\n", encoding="utf-8")
    image = build_recipe(project.source, project.lock, project.tools)
    ended = engine.run(ContainerRun(image=image.image_id, command=("/opt/env/bin/foo",)))
    assert ended.stdout.startswith(b"/opt/env "), ended.stderr
    assert image.manifest_digest not in before
    assert engine.image_facts(image.image_id) is not None
    kinds = {read_magic(project.store, record) for record in records(project.store, "layer")}
    assert kinds == {b"\x1f\x8b", b"\x28\xb5"}
    assert packed.installed == image.installed
    old = int(engine.facts().version.partition(".")[0]) < 23
    assert ("cannot pull" in capsys.readouterr().err) == old


def read_magic(store: Store, record: dict[str, str]) -> bytes:
    return store.path(record["digest"].removeprefix("sha256:")).read_bytes()[:2]


def test_two_builds_of_one_recipe_at_once_do_the_work_once(project: Project) -> None:
    running = [command(project, "build", f"recipes/{NAME}.yaml", "--json") for _ in range(2)]
    ended = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0], ended
    assert len({json.loads(out)["image_id"] for out, _ in ended}) == 1
    said = "\n".join(err for _, err in ended)
    assert said.count(f"✓ assemble envbuild/{NAME}:latest") == 1
    assert said.count(f"= image envbuild/{NAME}:latest: current") == 1


def test_a_collection_takes_the_old_image_and_what_it_alone_needed(
    project: Project, engine: DockerEngine, tmp_path: Path
) -> None:
    old = build_recipe(project.source, project.lock, project.tools)
    bar = add_wheel(project.store, tmp_path, "bar", version="1.1", files={"bar.py": b"NEW = True\n"})
    project.lock_with([bar, *(wheel for wheel in project.wheels if wheel.name != "bar")])
    new = build_recipe(project.source, project.lock, project.tools)
    garbage = find_garbage(project.tools)
    assert [image.names for image in garbage.images] == [(old.image_id,)]
    assert {"fetched", "layer", "bytecode"} == set(garbage.kinds)
    collect(garbage, project.tools)
    assert engine.image_id(old.image_id) is None
    assert build_recipe(project.source, project.lock, project.tools) == new
    forget_image(project, engine)
    assert build_recipe(project.source, project.lock, project.tools) == new  # its layers are all there
    assert find_garbage(project.tools).count == 0


def test_a_kit_makes_the_same_image_with_all_networks_off(
    project: Project, engine: DockerEngine, tmp_path: Path
) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root may take the network away from a process")
    image = build_recipe(project.source, project.lock, project.tools)
    export_kit(project.source, project.lock, tmp_path / "kit.tar", project.tools)
    forget_image(project, engine)
    subprocess.run(["tar", "-xf", tmp_path / "kit.tar", "-C", tmp_path], check=True)
    moved = Project(root=tmp_path / "kit", store=Store(tmp_path / "kit" / "store"), engine=lambda: engine, name=NAME)
    made = command(moved, "make", "--locked", f"recipes/{NAME}.yaml", "--json", before=("unshare", "--net"))
    out, err = made.communicate(timeout=120)
    assert json.loads(out)["image_id"] == image.image_id, err
    assert "✓ prove" in err


def test_the_oci_layout_is_the_image_of_the_engine_also_when_the_store_has_lost_its_layers(
    project: Project, engine: DockerEngine, tmp_path: Path
) -> None:
    image = build_recipe(project.source, project.lock, project.tools)
    for kind, key in list(project.store.results()):
        if kind == "layer":
            project.store.forget_result(kind, key)
    export_layout(project.source, project.lock, tmp_path / "image.tar", project.tools)
    assert engine.image_id(image.reference) == image.image_id
    other = Store(tmp_path / "other")
    read = read_layout_image(tmp_path / "image.tar", other)
    assert (read.config_digest, read.manifest_digest) == (image.image_id, image.manifest_digest)


def test_a_damaged_layer_never_enters_an_oci_layout(project: Project, tmp_path: Path) -> None:
    image = build_recipe(project.source, project.lock, project.tools)
    for record in records(project.store, "layer"):
        path = project.store.path(record["digest"].removeprefix("sha256:"))
        data = path.read_bytes()
        path.write_bytes(bytes([*data[:-9], data[-9] ^ 1, *data[-8:]]) if len(data) < 10_000 else data)
    tools = replace(project.tools, store=Store(project.store.root))
    export_layout(project.source, project.lock, tmp_path / "image.tar", tools)
    assert read_layout_image(tmp_path / "image.tar", Store(tmp_path / "other")).manifest_digest == image.manifest_digest


def test_a_command_runs_in_the_image_and_its_exit_code_comes_back(project: Project) -> None:
    if shutil.which("docker") is None:
        pytest.skip("`envbuild shell` needs the docker client")
    script = "import bar, sys; print(bar.NAME, sys.argv[1:]); sys.exit(7)"
    running = command(project, "shell", f"recipes/{NAME}.yaml", "--", "python", "-c", script, "--flag", "a b")
    out, err = running.communicate(timeout=120)
    assert (running.returncode, out) == (7, "bar ['--flag', 'a b']\n"), err
