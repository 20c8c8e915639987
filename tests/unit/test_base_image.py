"""A base that is an image of a registry: a tag becomes a digest, its facts are read from its own files."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.build.published import push_image
from builder.console import Console
from builder.errors import InvalidDocumentError, RegistryError, ResolveError, UsageError
from builder.lock.examine import facts_of
from builder.lock.image_base import fetch_image, mirrored_reference, resolve_image
from builder.lock.stage import lock_recipe, locked_recipe
from builder.lock.update import Update
from builder.recipe.source import read_recipe
from builder.registry.client import RegistryClient
from builder.registry.content import OCI_INDEX
from builder.registry.reference import Repository, parse_reference
from builder.settings import settings_from
from builder.store import Store
from builder.tools import Tools
from tests.base_images import INTERPRETER, LIBC, SETTINGS, make_base_image
from tests.docker.python_rootfs import system_python
from tests.fake_registry import FakeRegistry, running
from tests.fakes import FakeEngine
from tests.package_index import PackageIndex, serve
from tests.registry_image import make_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from builder.build.image import Image
    from builder.recipe.source import RecipeFile
    from builder.settings import Settings

PYTHON = system_python()
RECIPE = """\
version: 1
name: on-an-image
target: {{gpu: h200}}
base: {{image: {image}}}
python: "{python}"
stack: {{foo: "1.0"}}
"""


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with running(FakeRegistry()) as server:
        yield server


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_from({"DOCKER_CONFIG": str(tmp_path), "ENVBUILD_STORE": str(tmp_path / "store")})


@pytest.fixture
def push(registry: FakeRegistry, settings: Settings, tmp_path: Path) -> Callable[..., Image]:
    """Pushes an image as `vendor/base:1` from a store of its own and returns it."""

    def pushed(image: Image | None = None, *, mark: str = "1") -> Image:
        made = image or make_base_image(Store(tmp_path / "maker"), mark=mark)
        repository = Repository(registry=registry.host, name="vendor/base")
        with RegistryClient(settings) as client:
            push_image(made, repository.at("1"), Store(tmp_path / "maker"), client)
        return made

    return pushed


def test_a_tag_becomes_a_digest_with_the_facts_of_its_own_files(
    push: Callable[..., Image], registry: FakeRegistry, settings: Settings
) -> None:
    image, store = push(), Store(settings.store)
    base = resolve_image(f"{registry.host}/vendor/base:1", PYTHON, store, settings)
    assert base.digest == image.manifest_digest
    assert base.reference == f"{registry.host}/vendor/base@{image.manifest_digest}"
    assert [layer.digest for layer in base.layers] == [layer.blob.digest for layer in image.layers]
    assert [layer.diff_id for layer in base.layers] == [layer.blob.diff_id for layer in image.layers]
    assert [layer.unpacked for layer in base.layers] == [layer.blob.unpacked for layer in image.layers]
    assert (base.epoch, base.python) == (SETTINGS.epoch, INTERPRETER)
    assert base.glibc == 36
    assert base.packages == {"gcc": "4:12.2.0-3", "libc6": "2.36-9"}
    assert base.environment == SETTINGS.environment
    again = resolve_image(base.reference, PYTHON, store, settings)
    assert again == base.model_copy(update={"image": again.image})


def test_an_interpreter_that_a_layer_above_removed_is_not_there(
    push: Callable[..., Image], registry: FakeRegistry, settings: Settings
) -> None:
    push()
    with pytest.raises(ResolveError, match=f"has no Python 3.4: it has {INTERPRETER}$") as raised:
        resolve_image(f"{registry.host}/vendor/base:1", "3.4", Store(settings.store), settings)
    assert raised.value.message.startswith("base.image: ")


def test_an_image_without_glibc_or_python_is_refused(
    push: Callable[..., Image], registry: FakeRegistry, settings: Settings, tmp_path: Path
) -> None:
    push(make_image(Store(tmp_path / "maker"), {"usr/local/bin/python3.13": b"", "lib/ld-musl-x86_64.so.1": b""}))
    name, store = f"{registry.host}/vendor/base:1", Store(settings.store)
    with pytest.raises(ResolveError, match="has no glibc"):
        resolve_image(name, "3.13", store, settings)
    with pytest.raises(ResolveError, match=r"has no Python 3\.12: it has /usr/local/bin/python3\.13"):
        resolve_image(name, "3.12", store, settings)
    push(make_image(Store(tmp_path / "maker"), {"bin/sh": b""}))
    with pytest.raises(ResolveError, match="it has no Python at all in /usr"):
        resolve_image(name, "3.12", store, settings)


def test_an_opaque_folder_hides_what_lies_below(
    push: Callable[..., Image], registry: FakeRegistry, settings: Settings, tmp_path: Path
) -> None:
    layers = (
        {"usr/bin/python3.13": b"", "usr/lib/x86_64-linux-gnu/libc.so.6": LIBC, "usr/local/bin/python3.12": b""},
        {"usr/bin/.wh..wh..opq": b"", "usr/bin/python3.11": b""},
    )
    push(make_image(Store(tmp_path / "maker"), *layers))
    name, store = f"{registry.host}/vendor/base:1", Store(settings.store)
    with pytest.raises(ResolveError, match=r"it has /usr/bin/python3\.11, /usr/local/bin/python3\.12$"):
        resolve_image(name, "3.13", store, settings)
    assert resolve_image(name, "3.11", store, settings).glibc == 36


def test_of_an_image_for_several_platforms_ours_is_locked(
    push: Callable[..., Image], registry: FakeRegistry, settings: Settings
) -> None:
    image = push()
    entry = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "size": len(image.manifest)}
    other = entry | {"digest": f"sha256:{'1' * 64}", "platform": {"os": "linux", "architecture": "arm64"}}
    ours = entry | {"digest": image.manifest_digest, "platform": {"os": "linux", "architecture": "amd64"}}
    index = json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [other, ours]}).encode()
    registry.manifests["vendor/base"]["many"] = (OCI_INDEX, index)
    base = resolve_image(f"{registry.host}/vendor/base:many", PYTHON, Store(settings.store), settings)
    assert (base.digest, base.platform) == (image.manifest_digest, "linux/amd64")
    registry.manifests["vendor/base"]["none"] = (OCI_INDEX, json.dumps({"manifests": [other]}).encode())
    with pytest.raises(RegistryError, match="has no image for linux/amd64"):
        resolve_image(f"{registry.host}/vendor/base:none", PYTHON, Store(settings.store), settings)


def test_an_image_of_another_architecture_is_refused(
    push: Callable[..., Image], registry: FakeRegistry, settings: Settings, tmp_path: Path
) -> None:
    push(make_base_image(Store(tmp_path / "maker"), settings=replace(SETTINGS, architecture="arm64")))
    with pytest.raises(InvalidDocumentError, match="is for linux/arm64, not linux/amd64"):
        resolve_image(f"{registry.host}/vendor/base:1", PYTHON, Store(settings.store), settings)


def test_a_mirror_of_a_registry_is_asked_in_its_place(
    push: Callable[..., Image], registry: FakeRegistry, tmp_path: Path
) -> None:
    push()
    mirrors = {"ENVBUILD_REGISTRY_MIRRORS": f"other.example=x registry.example:5000={registry.host}/vendor/"}
    settings = settings_from({"DOCKER_CONFIG": str(tmp_path), **mirrors})
    base = resolve_image("registry.example:5000/base:1", PYTHON, Store(tmp_path / "store"), settings)
    assert base.reference.startswith("registry.example:5000/base@sha256:")
    assert registry.host not in json.dumps(base.to_plain())
    fetch_image(base, Store(tmp_path / "another"), settings)
    assert all(Store(tmp_path / "another").has(layer.digest.removeprefix("sha256:")) for layer in base.layers)
    reference = parse_reference("third.example/base:1")
    assert mirrored_reference(reference, settings) == reference


def write_recipe(folder: Path, image: str, text: str = RECIPE) -> RecipeFile:
    (folder / "recipes").mkdir(exist_ok=True)
    path = folder / "recipes" / "on-an-image.yaml"
    path.write_text(text.format(image=image, python=PYTHON), encoding="utf-8")
    return read_recipe(path)


@pytest.fixture
def tools(settings: Settings) -> Iterator[Tools]:
    index = PackageIndex()
    index.add("foo", "1.0")
    index.add("pip", "25.0")
    with serve(index) as served:
        yield Tools(
            settings=replace(settings, index_url=served.url),
            store=Store(settings.store),
            console=Console(),
            connect=FakeEngine,
        )


def test_a_lock_keeps_the_image_while_its_tag_moves_until_it_is_asked(
    push: Callable[..., Image], registry: FakeRegistry, tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    first = push()
    source = write_recipe(tmp_path, f"{registry.host}/vendor/base:1")
    lock = lock_recipe(source, tools)
    assert lock.file.debian is None
    assert lock.file.base is not None
    assert lock.file.base.digest == first.manifest_digest
    assert [wheel.name for wheel in lock.wheels] == ["foo"]
    assert lock.epoch == SETTINGS.epoch
    assert facts_of(lock).debian["gcc"] == "4:12.2.0-3"
    second = push(mark="2")
    assert lock_recipe(source, tools) == locked_recipe(source) == lock
    moved = lock_recipe(source, tools, update=Update(names=("foo",))).file.base
    assert moved is not None
    assert moved.digest == first.manifest_digest
    moved = lock_recipe(source, tools, update=Update(names=("base",))).file.base
    assert moved is not None
    assert moved.digest == second.manifest_digest
    with pytest.raises(UsageError, match="has no package 'debian'"):
        lock_recipe(source, tools, update=Update(names=("debian",)))


def test_packages_that_must_be_compiled_are_refused_on_a_foreign_base(
    registry: FakeRegistry, tools: Tools, tmp_path: Path
) -> None:
    text = RECIPE.replace('{{foo: "1.0"}}', '{{foo: "1.0", bar: {{version: "1", build: {{}}}}}}')
    source = write_recipe(tmp_path, f"{registry.host}/vendor/base:1", text)
    with pytest.raises(ResolveError, match=r"yaml:4:8: base\.image: bar must be compiled, and a toolchain"):
        lock_recipe(source, tools)
    assert registry.log == []
