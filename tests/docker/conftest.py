"""What the tests with an engine share."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.command_line import PROJECT, QUICKSTART, Ended, envbuild
from tests.docker.docker_registry import docker_registry
from tests.publication import proven_project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.workshop import Project


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The quickstart recipe made once."""
    folder = tmp_path_factory.mktemp("quickstart")
    for name in ("recipes", "lockfiles", "dockerfiles"):
        shutil.copytree(PROJECT / name, folder / name)
    return envbuild(folder, "make", "--locked", "--json", QUICKSTART)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a registry of the module's own."""
    with docker_registry(tmp_path_factory.mktemp("registry")) as host:
        yield host


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A small project whose recipe was made and proven."""
    return proven_project(tmp_path_factory.mktemp("project"))
