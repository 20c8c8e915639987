"""What the tests with an engine share."""

from __future__ import annotations

import shutil

import pytest

from tests.command_line import PROJECT, QUICKSTART, Ended, envbuild


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The quickstart recipe made once."""
    folder = tmp_path_factory.mktemp("quickstart")
    for name in ("recipes", "lockfiles", "dockerfiles"):
        shutil.copytree(PROJECT / name, folder / name)
    return envbuild(folder, "make", "--locked", "--json", QUICKSTART)
