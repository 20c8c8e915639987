"""The benchmark of images: one lock and its wheels for all, nothing compiled, one image at a time, records by stack."""

from __future__ import annotations

import contextlib
import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from builder.build.assembly import plan_image
from builder.build.base import base_identity
from builder.build.image import Image, Layer
from builder.build.tarlayer import Blob
from builder.build.wheels import BuiltWheel
from builder.lock.stage import locked_recipe
from builder.recipe.source import read_recipe
from builder.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.build.assembly import ImagePlan

PROJECT = Path(__file__).parents[2]
RECIPES = PROJECT / "recipes"
FLASH_ATTN = BuiltWheel(
    name="flash-attn", version="2.8.3", filename="flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl", sha256="ab" * 32
)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.syspath_prepend(PROJECT / "benchmarks")
    names = ("image", "image_stack", "image_peers", "image_records", "readme")
    return SimpleNamespace(**{name: importlib.import_module(name) for name in names})


def plan_of(name: str, store: Store, *built: BuiltWheel) -> ImagePlan:
    source = read_recipe(RECIPES / f"{name}.yaml")
    locked = locked_recipe(source)
    return plan_image(source.recipe, locked, base_identity(locked), built, store)


@pytest.mark.parametrize("name", ["sm120-glm5-torch291", "sm120-glm5-cu130", "quickstart"])
def test_the_first_copy_of_a_recipe_has_its_committed_lock(name: str, modules: SimpleNamespace, tmp_path: Path) -> None:
    stack = modules.image_stack.project_stack(RECIPES / f"{name}.yaml", tmp_path)
    stack.write(0, {})
    source, locked = stack.read(0)
    assert locked.digest == locked_recipe(read_recipe(RECIPES / f"{name}.yaml")).digest
    assert source.recipe.stack == stack.source.recipe.stack
    assert source.tag == "latest"
    assert stack.reference(0) == f"envbuild/{source.recipe.name}:latest" != f"envbuild/{name}:latest"


def test_another_copy_differs_in_its_pin_alone_and_overrules_who_asks_for_the_old_one(
    modules: SimpleNamespace, tmp_path: Path
) -> None:
    stack = modules.image_stack.project_stack(RECIPES / "sm120-glm5-torch291.yaml", tmp_path)
    old, new = stack.pins
    for number, edits in enumerate(({}, modules.image_stack.pin_edits(new))):
        stack.write(number, edits)
    one, other = (read_recipe(stack.recipe(number)).recipe for number in (0, 1))
    assert [each.stack["transformers"].version for each in (one, other)] == ["5.3.0", new] == [old, new]
    assert other.overrides["transformers"].version == new
    rest = {"name": one.name, "stack": one.stack, "overrides": one.overrides}
    assert other.model_copy(update=rest) == one
    assert {**other.stack, "transformers": one.stack["transformers"]} == one.stack


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("recipes/examples/flash-attn-forward.yaml", "names no release of transformers"),
        ("recipes/sm120-glm5.yaml", "has no committed lock"),
        ("tests/cases", "not a recipe of this project"),
    ],
)
def test_a_recipe_that_cannot_be_measured_is_refused_with_a_sentence(
    path: str, sentence: str, modules: SimpleNamespace, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=sentence):
        modules.image_stack.project_stack(PROJECT / path, tmp_path)


def test_a_wheel_that_must_be_compiled_first_is_named_and_nothing_is_fetched(
    modules: SimpleNamespace, tmp_path: Path
) -> None:
    stack = modules.image_stack.project_stack(RECIPES / "sm120-glm5-cu130.yaml", tmp_path)
    store = Store(tmp_path / "store")
    with pytest.raises(SystemExit, match=r"flash-attn: .*run `envbuild wheels recipes/sm120-glm5-cu130.yaml` first"):
        modules.image_stack.prepare(stack, 1, SimpleNamespace(store=store))
    assert not [path for path in (tmp_path / "store" / "files").rglob("*") if path.is_file()]


def test_a_release_that_moves_more_than_its_own_wheel_is_refused(modules: SimpleNamespace, tmp_path: Path) -> None:
    plan = plan_of("sm120-glm5-torch291", Store(tmp_path))

    def moved(*names: str) -> ImagePlan:
        return replace(
            plan,
            wheels=tuple(replace(each, sha256="0" * 64) if each.name in names else each for each in plan.wheels),
        )

    modules.image_stack.refuse_more(plan, moved("transformers"))
    for names, sentence in (
        (("transformers", "tokenizers"), "changes tokenizers, transformers: "),
        (("tokenizers",), "changes tokenizers: "),
        ((), "changes nothing: "),
    ):
        with pytest.raises(SystemExit, match=sentence):
            modules.image_stack.refuse_more(plan, moved(*names))


def test_the_peers_install_every_wheel_of_the_image_by_the_hash_of_its_file_the_compiled_ones_too(
    modules: SimpleNamespace, tmp_path: Path
) -> None:
    plan = plan_of("sm120-glm5-cu130", Store(tmp_path), FLASH_ATTN)
    lines = modules.image_peers.requirements(plan).splitlines()
    committed = (PROJECT / "dockerfiles" / "sm120-glm5-cu130" / "requirements.txt").read_text().splitlines()
    assert set(lines) - set(committed) == {f"flash-attn==2.8.3 --hash=sha256:{'ab' * 32}"}
    assert set(committed) <= set(lines)


def test_cold_is_measured_only_where_the_store_has_made_nothing(modules: SimpleNamespace, tmp_path: Path) -> None:
    store = Store(tmp_path)
    for kind in ("wheel", "base"):
        store.keep_result(kind, "0" * 64, {})
    modules.image.refuse_warm(store)
    for kind in ("layer", "bytecode"):
        store.keep_result(kind, "0" * 64, {})
        with pytest.raises(SystemExit, match="ENVBUILD_STORE"):
            modules.image.refuse_warm(store)
        store.forget_result(kind, "0" * 64)


def test_an_engine_that_had_the_large_layers_before_is_refused(modules: SimpleNamespace) -> None:
    blobs = [Blob(digest=f"sha256:{n:064}", size=1, diff_id=f"sha256:{n:064}", unpacked=10**n) for n in (3, 1, 4)]
    image = Image(layers=tuple(Layer(title="", blob=blob) for blob in blobs), config=b"", manifest=b"")
    base, environment, torch = modules.image.chain_ids(image.layers)
    modules.image.refuse_known(image, {base, environment}, 100)
    with pytest.raises(SystemExit, match="remove the images"):
        modules.image.refuse_known(image, {base, environment, torch}, 100)


@pytest.mark.parametrize(
    ("ours", "built", "names"),
    [
        ({"cold": 10.0, "pin": 1.0}, ["pip", "uv"], ["cold, pip", "pin changed", "cold, uv"]),
        ({"cold": 10.0}, ["pip", "uv"], ["cold, pip", "cold, uv"]),
        ({"pin": 1.0}, ["pip"], ["pin changed"]),
        ({"size": 5e9}, [], []),
    ],
)
def test_each_peer_is_built_once_and_removed_before_the_next(
    ours: dict[str, float],
    built: list[str],
    names: list[str],
    modules: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    def build(_bench: object, kind: str, _base: str) -> float:
        seen.append(f"built {kind}")
        return 100.0

    image = Image(layers=(), config=b"", manifest=b"")
    bench = SimpleNamespace(
        ours=ours,
        forget=lambda tag: seen.append(f"removed {tag.removeprefix('envbuild-benchmark/')}"),
        image=lambda _number: image,
        stack=SimpleNamespace(pins=("5.3.0", "5.4.0")),
    )
    monkeypatch.setattr(modules.image, "build_peer", build)
    monkeypatch.setattr(modules.image, "pip_wheel", lambda _bench: SimpleNamespace(version="26.3"))
    records = list(modules.image.peers(bench, "envbuild/base:0"))
    assert seen == [f"{word} {kind}" for kind in built for word in ("built", "removed")]
    assert [record["name"] for record in records] == [f"image: {name}" for name in names]


def test_our_images_leave_the_engine_before_the_peers_wheels_come(
    modules: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def cold(bench: SimpleNamespace) -> Iterator[dict[str, Any]]:
        bench.ours["cold"] = 1.0
        yield {"name": "cold"}

    def peers(_bench: object, base: str) -> Iterator[dict[str, Any]]:
        seen.append(f"peers on {base}")
        yield {"name": "peers"}

    bench = SimpleNamespace(
        ours={}, stack=None, tools=None, folder=tmp_path, base=lambda _: "base", clean=lambda: seen.append("cleaned")
    )
    for name, value in {
        "prepare": lambda _stack, copies, _tools: seen.append(copies),
        "docker_registry": lambda _folder: contextlib.nullcontext("registry"),
        "cold": cold,
        "peers": peers,
        "import_wheels": lambda _bench, _toolkit: seen.append("wheels"),
    }.items():
        monkeypatch.setattr(modules.image, name, value)
    assert [each["name"] for each in modules.image.measure(bench, None, ["cold"])] == ["cold", "peers"]
    assert seen == [1, "cleaned", "wheels", "peers on base", "cleaned"]


def written(modules: SimpleNamespace, folder: Path, record: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
    modules.image_records.write_record(record, stack)
    [path] = folder.glob("*.json")
    text = json.loads(path.read_text())
    path.unlink()
    return path.name, text


def test_each_stack_has_records_of_its_own_which_the_page_shows(
    modules: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules.image_records, "RESULTS", tmp_path)
    record = modules.image_records.record("cold, pip", "5 GB: 1 s against 4 s", 0.25, peer="pip", release="26.3")
    name, plain = written(modules, tmp_path, record, "")
    assert (name, plain) == ("image-cold-pip.json", record)
    name, large = written(modules, tmp_path, record, "sm120-glm5-torch291")
    assert name == "image-cold-pip-sm120-glm5-torch291.json"
    assert large == {**record, "name": "image: cold, pip (sm120-glm5-torch291)"}
    rows = modules.readme.page([large, plain]).splitlines()[-2:]
    commands = [row.split(" | ")[0] for row in rows]
    assert commands == [
        "| `python benchmarks/image.py`: cold, pip",
        "| `python benchmarks/image.py`: cold, pip (sm120-glm5-torch291)",
    ]


def test_committed_records_of_images_have_the_names_that_the_benchmark_gives_them(
    modules: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules.image_records, "RESULTS", tmp_path)
    for path in (PROJECT / "benchmarks" / "results").glob("image-*.json"):
        name, _ = written(modules, tmp_path, json.loads(path.read_text()), "")
        assert name == path.name
