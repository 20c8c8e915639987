"""The real index: the stack of the quickstart resolves, its files are found, uv and pip read the lock as it is."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from uv import find_uv_bin

from builder import process
from builder.lock.pylock import read_pylock, write_pylock
from builder.lock.python import resolve_python
from builder.lock.target import Target
from builder.lock.wheels import fetch_wheels
from builder.settings import settings_from
from builder.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from builder.lock.model import LockedWheel

pytestmark = pytest.mark.network

TRIXIE = Target(python="3.13", glibc=41)
SETTINGS = settings_from()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


def resolve(store: Store, *requirements: str, target: Target = TRIXIE) -> tuple[LockedWheel, ...]:
    return resolve_python(requirements, target=target, store=store, settings=SETTINGS, as_of="2026-11-25")


@pytest.mark.parametrize("transformers", ["5.1.0", "5.8.1", "5.24.0"])
def test_the_stack_locks_twice_to_the_same_bytes(transformers: str, store: Store) -> None:
    pins = ("torch==2.11.0", f"transformers=={transformers}", "numpy")
    first = write_pylock(resolve(store, *pins), python="3.13")
    assert write_pylock(resolve(store, *pins), python="3.13") == first
    wheels = {wheel.name: wheel for wheel in read_pylock(first, "pylock.toml")}
    assert wheels["transformers"].version == transformers
    assert wheels["torch"].filename == "torch-2.11.0-cp313-cp313-manylinux_2_28_x86_64.whl"
    assert wheels["cuda-toolkit"].version.startswith("13.0.")
    assert b"://" not in first


def test_the_cuda_compiler_is_locked_as_wheels(store: Store) -> None:
    wheels = {wheel.name: wheel for wheel in resolve(store, "cuda-toolkit[nvcc,cudart,crt,nvvm,cccl]==13.1.*")}
    assert {"nvidia-cuda-nvcc", "nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl"} < set(
        wheels
    )
    assert wheels["nvidia-cuda-nvcc"].version.startswith("13.1.")


def test_uv_and_pip_install_from_the_lock_and_its_folder_without_any_index(store: Store, tmp_path: Path) -> None:
    major, minor = sys.version_info[:2]
    here = Target(python=f"{major}.{minor}", glibc=17)
    wheels = resolve(store, "jinja2", "pip>=26", target=here)
    fetch_wheels(wheels, store, SETTINGS)
    (tmp_path / "wheels").mkdir()
    for wheel in wheels:
        os.link(store.path(wheel.sha256), tmp_path / "wheels" / wheel.filename)
    (tmp_path / "pylock.toml").write_bytes(write_pylock(wheels, python=here.python))
    pip = next(tmp_path.glob("wheels/pip-*.whl")) / "pip"
    commands = {
        "by-uv": (find_uv_bin(), "--offline", "pip", "sync", "--no-config", "--no-cache"),
        "by-pip": (sys.executable, str(pip), "install", "--no-index", "--isolated", "--requirement"),
    }
    for name, command in commands.items():
        ended = process.run((*command, "pylock.toml", "--target", name), cwd=tmp_path, without=["PIP_FIND_LINKS"])
        assert ended.code == 0, ended.text
        assert (tmp_path / name / "jinja2" / "__init__.py").is_file()
        assert (tmp_path / name / "markupsafe" / "__init__.py").is_file()
