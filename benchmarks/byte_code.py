"""Byte code for the processes that a benchmark starts: a person's second run finds it, whatever this machine sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]
IMPORTED = "import builder.pipeline, builder.matrix.warm, builder.dockerd.client"  # nearly all that a run imports


def write_byte_code(folder: Path) -> None:
    """Let all processes that are started from now on find their byte code in a folder, and write it there."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ |= {"PYTHONPYCACHEPREFIX": str(folder / "byte-code"), "PYTHONPATH": str(PROJECT)}
    subprocess.run([sys.executable, "-c", IMPORTED], check=True)
