"""A disk of a few megabytes, in memory: what a build does when it is full."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def small_disk(folder: Path, *, megabytes: int) -> Iterator[None]:
    """Mount an empty disk of that size on a folder; a test that may not mount is skipped."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "small", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("only root may mount the small disk of this test")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def enlarge(folder: Path, *, megabytes: int) -> None:
    """Give a small disk more room."""
    subprocess.run(["mount", "-o", f"remount,size={megabytes}m", str(folder)], check=True)
