"""From a recipe to a stranger's engine: built, proven, published, verified elsewhere, promoted, pulled and run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import docker
import pytest

from builder.build.layers import base_tag
from builder.document import sha256_file
from builder.engine import ContainerRun
from builder.errors import EngineError, NotVerifiedError
from builder.pipeline import make
from builder.publish.examination import examine_image
from builder.publish.policy import Policy
from builder.publish.promotion import promote_image
from builder.publish.shelf import RegistryShelf
from builder.publish.stage import publish_recipe
from builder.registry.client import RegistryClient
from builder.registry.reference import Repository
from builder.settings import settings_from
from builder.store import Store
from tests.docker.docker_registry import docker_registry
from tests.publication import new_signer
from tests.workshop import make_rootfs, new_project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.dockerd.client import DockerEngine
    from builder.engine import Engine
    from tests.workshop import Project

pytestmark = pytest.mark.docker
NAME = "envbuild-test-publish"


@pytest.fixture
def project(tmp_path: Path, engine: DockerEngine) -> Iterator[Project]:
    rootfs = make_rootfs(tmp_path / "base.tar")
    yield new_project(tmp_path, rootfs, lambda: engine, name=NAME)
    engine.remove_image(f"envbuild/{NAME}:latest")
    engine.remove_image(base_tag(f"sha256:{sha256_file(rootfs)}"))


def stopped() -> Engine:
    raise EngineError("the engine is stopped")


def test_an_image_goes_from_its_recipe_to_the_engine_of_a_stranger(
    project: Project, engine: DockerEngine, tmp_path: Path
) -> None:
    signer = new_signer()
    with docker_registry(tmp_path / "registry") as host:
        repository = Repository(registry=host, name="team/stacks")
        with pytest.raises(NotVerifiedError, match="was never proven"):
            publish_recipe(project.source, repository, signer, project.tools)
        assert make(project.source, project.tools, frozen=True).result == "good"
        without = replace(project.tools, connect=stopped)
        published = publish_recipe(project.source, repository, signer, without)
        target = Repository(registry=host, name="prod/stacks")
        clean = replace(without, store=Store(tmp_path / "clean"))
        promote_image(str(repository.at(NAME)), str(target), signer.proof, Policy(), clean)
        with RegistryClient(settings_from({})) as client:
            shelf = RegistryShelf(client=client, repository=target)
            manifest = client.manifest(target.at(NAME))
            report = examine_image(shelf, NAME, manifest, signer.proof, Policy(target="rtx-pro-6000")).report
        assert (report.result, report.digest) == ("verified", published.digest)
        reference = f"{target}@{report.digest}"
        connection = docker.from_env()
        try:
            assert report.verdict is not None
            pulled = connection.images.pull(str(target), tag=report.digest)
            assert pulled.id == report.verdict.image_id
            ended = engine.run(ContainerRun(image=reference, command=("/opt/env/bin/foo",)))
            assert ended.stdout.startswith(b"/opt/env "), ended.stderr
        finally:
            engine.remove_image(reference)
            connection.close()
