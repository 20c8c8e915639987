"""A base from a real registry, Debian's: locked by digest, built on, run, and rebuilt from its Dockerfile alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.build.image import chain_ids
from builder.build.layers import base_tag
from builder.build.published import push_image
from builder.build.render import render_dockerfiles
from builder.build.stage import build_recipe
from builder.console import Console
from builder.engine import ContainerRun
from builder.export.stage import check_dockerfile, export_context
from builder.lock.pylock import read_pylock
from builder.lock.stage import lock_recipe
from builder.lock.wheels import fetch_wheels
from builder.recipe.source import read_recipe
from builder.registry.client import RegistryClient
from builder.registry.reference import Repository
from builder.settings import settings_from
from builder.store import Store
from builder.tools import Tools
from tests.base_images import SETTINGS, make_base_image, real_rootfs
from tests.docker.docker_registry import docker_registry
from tests.docker.python_rootfs import system_python
from tests.docker.test_dockerfile_agrees import LOCKED
from tests.package_index import PackageIndex, serve

if TYPE_CHECKING:
    from pathlib import Path

    from builder.build.image import Image
    from builder.dockerd.client import DockerEngine

pytestmark = [pytest.mark.docker, pytest.mark.network]

NAME = "envbuild-test-on-an-image"
RECIPE = """\
version: 1
name: {name}
target: {{gpu: h200}}
base: {{image: {image}}}
python: "{python}"
stack: {{foo: "1.0"}}
"""


def test_an_image_is_built_on_a_base_by_digest_and_its_dockerfile_agrees(
    engine: DockerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    maker, store = Store(tmp_path / "maker"), Store(tmp_path / "store")
    base = make_base_image(maker, real_rootfs(tmp_path))
    (pip,) = [wheel for wheel in read_pylock(LOCKED.read_bytes(), source=str(LOCKED)) if wheel.name == "pip"]
    fetch_wheels([pip], store, settings_from())
    index = PackageIndex(files={"pip": {pip.filename: store.path(pip.sha256).read_bytes()}})
    index.uploaded[pip.filename] = "2026-01-01T00:00:00Z"
    index.add("foo", "1.0")
    with docker_registry(tmp_path / "registry") as host, serve(index) as served:
        image = f"{host}/vendor/base:1"
        settings = settings_from({"DOCKER_CONFIG": str(tmp_path), "ENVBUILD_INDEX_URL": served.url})
        with RegistryClient(settings) as client:
            push_image(base, Repository(registry=host, name="vendor/base").at("1"), maker, client)
        (tmp_path / "recipes").mkdir()
        path = tmp_path / "recipes" / f"{NAME}.yaml"
        path.write_text(RECIPE.format(name=NAME, image=image, python=system_python()), encoding="utf-8")
        source = read_recipe(path)
        tools = Tools(settings=settings, store=store, console=Console(), connect=lambda: engine)
        lock = lock_recipe(source, tools)
        assert (
            f"FROM {host}/vendor/base@{base.manifest_digest} AS base"
            in render_dockerfiles(source.recipe, lock)["Dockerfile"].splitlines()
        )
        for layer in base.layers:  # another machine has the lock alone
            store.drop(layer.blob.digest.removeprefix("sha256:"))
        reference = f"{host}/vendor/base@{base.manifest_digest}"
        try:
            built = build_recipe(source, lock, tools)
            check_dockerfile(source, lock, tools)
            facts = engine.image_facts(built.reference)
            ran = engine.run(
                ContainerRun(image=built.reference, command=("python3", "-c", "import foo, sys; print(sys.prefix)"))
            )
            export_context(source, lock, tmp_path / "context", tools)
        finally:
            engine.remove_image(f"envbuild/{NAME}:latest")
            engine.remove_image(reference)
            engine.remove_image(base_tag(_chain(base)))
    assert (ran.code, ran.stdout) == (0, b"/opt/env\n")
    assert facts is not None
    assert [layer.diff_id for layer in facts.layers[:2]] == [layer.blob.diff_id for layer in base.layers]
    assert facts.environment["LD_LIBRARY_PATH"] == SETTINGS.environment["LD_LIBRARY_PATH"]
    assert facts.environment["PATH"] == f"/opt/env/bin:{SETTINGS.environment['PATH']}"
    assert facts.labels["maker"] == "tests"
    assert not (tmp_path / "context" / "base.tar").exists()
    assert {path.name for path in (tmp_path / "context" / "wheels").iterdir()} == {"foo-1.0-py3-none-any.whl"}


def _chain(image: Image) -> str:
    return chain_ids(image.layers)[-1]
