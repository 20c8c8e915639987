"""What all tests share: a Docker engine that must be there where a test needs one, and a tiny image made offline."""

from __future__ import annotations

import shutil
import signal
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.errors import EngineError
from builder.settings import settings_from
from builder.store import Store
from tests.tiny_image import tiny_archive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.dockerd.client import DockerEngine


NVIDIA = Path("/dev/nvidiactl")  # made by the driver when it finds a GPU


def pytest_configure() -> None:
    """Take interrupts also where the whole run was started in the background or by nohup: programs inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_runtest_setup(item: pytest.Item) -> None:
    uses_engine = "engine" in getattr(item, "fixturenames", ())
    if uses_engine and item.get_closest_marker("docker") is None:
        pytest.fail("this test uses the fixture `engine`, so it needs the mark `docker`", pytrace=False)
    if item.get_closest_marker("gpu") is not None and not NVIDIA.exists():
        pytest.skip("needs an NVIDIA GPU, and this machine has none")


@pytest.fixture(autouse=True)
def _engine_where_marked(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("docker") is not None:
        request.getfixturevalue("engine")


@pytest.fixture(scope="session")
def engine() -> DockerEngine:
    """The engine of this machine; without one a test that is marked `docker` fails, it is never skipped."""
    from builder.dockerd.client import connect

    try:
        return connect(settings_from())
    except EngineError as error:
        pytest.fail(f"{error.message}; {error.remedy} (tests without an engine: -m 'not docker')", pytrace=False)


@pytest.fixture(scope="session")
def tiny_image(engine: DockerEngine) -> Iterator[str]:
    """A reference to an image with a shell and a few programs of this machine, made without any network."""
    name = f"envbuild-test/tiny:{uuid.uuid4().hex[:12]}"
    engine.load(tiny_archive(name))
    yield name
    engine.remove_image(name)


@pytest.fixture(scope="session")
def players(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the libraries that play the GPU, under their names."""
    from builder.verify.dry_run.pretended import pretended_libraries

    place = tmp_path_factory.mktemp("pretended")
    for name, path in pretended_libraries(Store(tmp_path_factory.mktemp("store"))).items():
        shutil.copy(path, place / Path(name).name)
    return place
