"""What holds for the engine of the tests holds for one of today, whose images lie in the containerd image store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.matrix.engines import connect_to
from builder.settings import settings_from
from tests.docker.second_engine import second_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.docker

PROGRAMS = Path("/usr/local/lib/envbuild-tests/engine")  # where `.ci/machine tests` puts it
STORE = ("--feature", "containerd-snapshotter=true")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not (PROGRAMS / "dockerd").is_file():
        pytest.skip("needs an engine from 28 on, which `.ci/machine tests` fetches as root")
    with second_engine(tmp_path_factory.mktemp("containerd") / "e", programs=PROGRAMS, options=STORE) as made:
        assert connect_to(made.address, settings_from({})).facts().containerd
        yield made.address


@pytest.mark.parametrize("module", ["test_engine.py", "test_image.py", "test_compare.py", "test_keep.py"])
def test_it_passes_on_the_containerd_image_store(module: str, address: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 't'}", HERE / module],
        cwd=HERE.parents[1],
        env={**os.environ, "DOCKER_HOST": address},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-20000:]
    assert " passed" in ended.stdout
