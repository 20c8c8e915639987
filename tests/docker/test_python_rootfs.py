"""The bases that the tests make can run what Python does, not only what it is linked with."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.docker.python_rootfs import write_rootfs

if TYPE_CHECKING:
    import pytest


def test_a_thread_can_end_in_pthread_exit(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("rootfs") / "base.tar"
    write_rootfs(path)
    with tarfile.open(path) as archive:
        names = {Path(name).name for name in archive.getnames()}
    assert {"libc.so.6", "libgcc_s.so.1"} <= names
