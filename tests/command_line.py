"""The command line as a user calls it, and how it ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1]
ENVBUILD = [sys.executable, "-c", "from builder.cli import main; main()"]
QUICKSTART = "recipes/quickstart.yaml"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a call of the command line ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def steps(self) -> list[str]:
        """The steps that had something to do."""
        return [line.strip(" ✓").split(" (")[0] for line in self.err.splitlines() if line.startswith("  ✓")]


def envbuild(workspace: Path, *arguments: str, **environment: str) -> Ended:
    ended = subprocess.run(
        [*ENVBUILD, *arguments],
        cwd=workspace,
        env={**os.environ, "PYTHONPATH": str(PROJECT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return Ended(code=ended.returncode, out=ended.stdout, err=ended.stderr)
