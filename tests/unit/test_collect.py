from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.build.layers import base_tag
from builder.build.uses import note_published, note_use, remember_workspace
from builder.cli import run
from builder.collect import stage
from builder.collect.garbage import Garbage, find_unreachable
from builder.collect.roots import find_roots
from builder.collect.stage import collect, find_garbage
from builder.console import Console
from builder.document import hashes_in, key_of
from builder.engine import LocalImage
from builder.errors import EngineError, InvalidDocumentError
from builder.lock.git import repository_of
from builder.lock.model import LockedGit, LockedSubmodule
from builder.settings import settings_from
from builder.tools import Tools
from builder.verify.known import Known
from tests.fakes import FakeEngine
from tests.workshop import Project, add_wheel, new_project

if TYPE_CHECKING:
    from collections.abc import Callable

DIFF_ID = f"sha256:{'d' * 64}"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "base.tar").write_bytes(b"base")
    engine = FakeEngine()
    made = new_project(tmp_path, tmp_path / "base.tar", lambda: engine)
    remember_workspace(made.root, made.store)
    return made


def build(project: Project, layer: bytes) -> str:
    """Leave what a build of the project's lock leaves: an image of one layer, with its byte code; return the image."""
    store, key = project.store, key_of(["image", layer.decode()])
    blob, code = store.add_bytes(b"layer " + layer), store.add_bytes(b"code " + layer)
    layer_key, code_key = key_of(["layer", layer.decode()]), key_of(["code", layer.decode()])
    store.keep_result("layer", layer_key, {"digest": f"sha256:{blob}", "diff_id": DIFF_ID})
    store.keep_result("bytecode", code_key, {"sha256": code})
    Known(store=store, places={"foo": DIFF_ID}).keep({"foo": "packed"}, "12.0")
    image_id = f"sha256:{key_of(layer.decode())}"
    store.keep_result("image", key, {"image_id": image_id, "layers": [layer_key], "byte_code": [code_key]})
    note_use(project.lock.digest, [key, *(k for kind, k in store.results() if kind == "base")], store)
    return image_id


def names(garbage: Garbage) -> set[str]:
    return {piece.path.name for piece in garbage.pieces}


def test_what_the_lock_of_a_project_reaches_is_kept(project: Project) -> None:
    build(project, b"one")
    assert find_garbage(project.tools).count == 0


def test_after_a_changed_pin_only_what_the_old_lock_alone_needed_goes(project: Project, tmp_path: Path) -> None:
    build(project, b"one")
    before = {path.name for path in (project.store.root / "files").glob("*/*")}
    old = next(wheel for wheel in project.wheels if wheel.name == "bar")
    new = add_wheel(project.store, tmp_path, "bar", version="1.1")
    project.lock_with([new, *(wheel for wheel in project.wheels if wheel.name != "bar")])
    build(project, b"two")
    garbage = find_garbage(project.tools)
    layer, code = project.store.add_bytes(b"layer one"), project.store.add_bytes(b"code one")
    assert names(garbage) == {old.sha256, layer, code}
    assert set(garbage.kinds) == {"fetched", "layer", "bytecode"}
    collect(garbage, project.tools)
    assert {path.name for path in (project.store.root / "files").glob("*/*")} >= before - names(garbage)
    assert not project.store.has(old.sha256)
    assert find_garbage(project.tools).count == 0


def test_what_a_published_image_was_made_of_stays_when_its_lock_has_moved_on(project: Project, tmp_path: Path) -> None:
    build(project, b"one")
    note_published(f"sha256:{'a' * 64}", project.lock.digest, project.store)
    bar = add_wheel(project.store, tmp_path, "bar", version="1.1")
    project.lock_with([bar, *(wheel for wheel in project.wheels if wheel.name != "bar")])
    build(project, b"two")
    garbage = find_garbage(project.tools)
    layer, code = project.store.add_bytes(b"layer one"), project.store.add_bytes(b"code one")
    assert not {layer, code} & names(garbage)
    assert garbage.results == ()
    project.root.rename(project.root.with_name("elsewhere"))
    assert not {layer, code} & names(find_garbage(project.tools))
    assert project.store.add_bytes(b"layer two") in names(find_garbage(project.tools))


def test_when_a_project_folder_has_vanished_all_that_it_needed_goes(project: Project) -> None:
    build(project, b"one")
    project.root.rename(project.root.with_name("elsewhere"))
    collect(find_garbage(project.tools), project.tools)
    assert list(project.store.results()) == []
    assert [path for path in (project.store.root / "files").rglob("*") if path.is_file()] == []


def test_a_lock_that_cannot_be_read_stops_the_collection(project: Project) -> None:
    build(project, b"one")
    lock = project.root / "lockfiles" / "small" / "lock.yaml"
    lock.write_text(f"<<<<<<< ours\n{lock.read_text(encoding='utf-8')}", encoding="utf-8")
    with pytest.raises(InvalidDocumentError, match=r"lock\.yaml"):
        find_garbage(project.tools)


def test_a_compiled_wheel_is_kept_from_the_moment_that_its_build_is_planned(project: Project) -> None:
    wheel = project.store.add_bytes(b"two hours of nvcc")
    key = key_of("wheel job")
    project.store.keep_result("wheel", key, {"sha256": wheel})
    assert wheel in names(find_garbage(project.tools))
    note_use(project.lock.digest, [key], project.store, more=True)
    assert wheel not in names(find_garbage(project.tools))


def test_a_proof_of_a_lock_that_is_left_stays(project: Project) -> None:
    project.store.keep_result("verdict", "v1", {"lock_digest": project.lock.digest})
    project.store.keep_result("verdict", "v2", {"lock_digest": "0" * 64})
    assert ("verdict", "v1") not in find_garbage(project.tools).results
    assert ("verdict", "v2") in find_garbage(project.tools).results


def test_unfinished_work_goes_but_a_download_that_is_needed_is_continued(project: Project) -> None:
    build(project, b"one")
    tmp = project.store.root / "tmp"
    wanted, unwanted = tmp / f"part-{project.wheels[0].sha256}", tmp / f"part-{'9' * 64}"
    for path in (
        wanted,
        unwanted,
        project.store.root / "files" / ".half",
        project.store.root / "results" / "image" / ".half",
    ):
        path.write_bytes(b"123")
    (tmp / "1-dead").mkdir()
    (tmp / "1-dead" / "layer").write_bytes(b"12345")
    (project.store.root / "logs" / f"kernels-{'9' * 16}.log").write_bytes(b"log")
    for key in (project.wheels[0].sha256, "9" * 64):
        project.store.unfinished(key).mkdir(parents=True)
        (project.store.unfinished(key) / "object.o").write_bytes(b"1234567")
    garbage = find_garbage(project.tools)
    assert wanted.name not in names(garbage)
    assert garbage.kinds["unfinished"] == (4, 18)
    assert project.store.unfinished(project.wheels[0].sha256) not in [piece.path for piece in garbage.pieces]
    assert garbage.kinds["log"] == (1, 3)
    collect(garbage, project.tools)
    assert [path.name for path in tmp.iterdir()] == [wanted.name]


def test_repositories_that_no_lock_names_go(project: Project) -> None:
    old, tools = repository_of("https://example.org/old", project.store, history=False), project.tools
    for path in (old, wanted := repository_of("https://example.org/new", project.store, history=True)):
        path.mkdir(parents=True)
        (path / "HEAD").write_bytes(b"ref: x\n")
    roots = replace(find_roots(project.store), repositories=frozenset({"https://example.org/new"}))
    garbage = find_unreachable(roots, project.store)
    assert [piece.path for piece in garbage.pieces if piece.kind == "git repository"] == [old]
    collect(find_garbage(tools), tools)
    assert not old.exists()
    assert not wanted.exists()  # this project's lock names neither


def test_the_addresses_of_git_sources_and_of_their_submodules_are_roots(project: Project) -> None:
    module = LockedSubmodule(path="cutlass", url="https://example.org/cutlass", commit="b" * 40)
    git = LockedGit(
        name="kernels",
        url="https://example.org/k",
        commit="a" * 40,
        tree="c" * 40,
        submodules=(module,),
        archive="d" * 64,
    )
    project.lock_with(project.wheels, sources=(git,))
    roots = find_roots(project.store)
    assert roots.repositories == {"https://example.org/k", "https://example.org/cutlass"}
    assert "d" * 64 in roots.mentioned


def test_a_kill_in_mid_collection_leaves_no_record_without_its_files(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (b"one", b"two", b"three"):
        build(project, name)
    garbage = find_garbage(project.tools)
    left = 9

    def unlink(path: Path, real: Callable[..., None] = Path.unlink, **options: bool) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        real(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        with pytest.raises(KeyboardInterrupt):
            collect(garbage, project.tools)
    files = {path.name for path in (project.store.root / "files").glob("*/*")}
    gone = names(garbage) - files
    assert gone
    for kind, key in project.store.results():
        value = project.store.result(kind, key)
        assert value is not None
        assert not hashes_in(json.dumps(value).encode()) & gone
    collect(find_garbage(project.tools), project.tools)
    assert find_garbage(project.tools).count == 0


def test_old_images_of_this_store_go_and_all_others_stay(project: Project) -> None:
    old, new = build(project, b"one"), build(project, b"two")
    engine = FakeEngine(
        images={
            "envbuild/small:old": old,
            "envbuild/small:latest": new,
            "envbuild/other:latest": "sha256:someone",
            base_tag(DIFF_ID): "sha256:base",
        }
    )
    tools = Tools(settings=settings_from({}), store=project.store, console=Console(), connect=lambda: engine)
    garbage = find_garbage(tools)
    assert [image.names for image in garbage.images] == [("envbuild/small:old",)]
    collect(garbage, tools)
    assert set(engine.images) == {"envbuild/small:latest", "envbuild/other:latest", base_tag(DIFF_ID)}


def test_an_image_that_has_lost_its_tag_goes_though_the_verdict_of_its_lock_stays(project: Project) -> None:
    old, new = build(project, b"one"), build(project, b"two")
    project.store.keep_result("verdict", "v1", {"lock_digest": project.lock.digest, "image_id": old})
    tagged = LocalImage(image_id=old, references=("envbuild/small:try",), size=1, in_use=False)
    assert find_unreachable(find_roots(project.store), project.store, (tagged,)).images == ()
    images = (
        LocalImage(image_id=old, references=(), size=1, in_use=False),
        LocalImage(image_id=new, references=("envbuild/small:latest",), size=1, in_use=False),
    )
    garbage = find_unreachable(find_roots(project.store), project.store, images)
    assert [image.names for image in garbage.images] == [(old,)]
    assert ("verdict", "v1") not in garbage.results


@pytest.mark.parametrize("reason", ["a container uses it", "the person tagged it"])
def test_an_old_image_that_somebody_uses_stays(project: Project, reason: str) -> None:
    old, _ = build(project, b"one"), build(project, b"two")
    name = "envbuild/small:old" if reason.startswith("a container") else "mine:1"
    engine = FakeEngine(images={name: old}, used=frozenset({"envbuild/small:old"}))
    assert find_unreachable(find_roots(project.store), project.store, engine.local_images()).images == ()


def test_without_an_engine_the_store_is_collected_all_the_same(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> FakeEngine:
        raise EngineError("no engine runs")

    orphan = project.store.add_bytes(b"orphan")
    tools = Tools(settings=settings_from({}), store=project.store, console=Console(), connect=none)
    assert orphan in names(find_garbage(tools))
    assert "images of the engine are left out: no engine runs" in capsys.readouterr().err


@pytest.fixture
def command(project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setenv("ENVBUILD_STORE", str(project.store.root))
    monkeypatch.setattr(stage, "_images", lambda _tools: ())
    path = project.store.root

    def gc(*arguments: str) -> int:
        assert project.store.root == path
        object.__setattr__(project, "store", None)  # a store that is open elsewhere would hold the collection back
        return run(["gc", *arguments])

    return gc


def test_nothing_goes_unless_the_person_says_so(
    project: Project, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    orphan = project.store.path(project.store.add_bytes(b"orphan" * 1000))
    assert command() == 0
    captured = capsys.readouterr()
    assert "fetched" in captured.out
    assert "nothing is removed: say --yes" in captured.err
    assert orphan.is_file()


def test_with_yes_it_goes_and_json_says_how_much(
    project: Project, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    build(project, b"one")
    orphan = project.store.path(project.store.add_bytes(b"orphan" * 1000))
    assert command("--yes", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "removed": True,
        "bytes": 6000,
        "files": 1,
        "records": 0,
        "kinds": {"fetched": {"count": 1, "bytes": 6000}},
        "images": [],
    }
    assert not orphan.exists()


def test_a_clean_store_says_so(
    project: Project, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    build(project, b"one")
    assert command("--yes") == 0
    assert "nothing to remove" in capsys.readouterr().out
