"""Ranks that must agree on a sum: a rank that fails is named, one that hangs is given up, none stays."""

from __future__ import annotations

from pathlib import Path

import pytest

import builder
from builder.verify.probe.collective import CollectiveError, prove_collective
from tests.unit.test_serving import still_running

ROOT = str(Path(builder.__file__).parents[1])
MARK = "builder.verify.probe.collective"


def with_torch(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Give the ranks a torch of our own."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(source)
    (folder / "torch" / "distributed.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{ROOT}")


def test_a_rank_that_fails_is_named_with_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_torch(tmp_path, monkeypatch, "raise SystemExit('NCCL WARN no peer access')")
    with pytest.raises(CollectiveError, match=r"nccl all-reduce: rank \d ended with exit code 1: NCCL WARN no peer"):
        prove_collective(2, "nccl", 60.0)
    assert still_running(MARK) == []


def test_ranks_that_hang_are_given_up_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_torch(tmp_path, monkeypatch, "import time; time.sleep(600)")
    with pytest.raises(CollectiveError, match="nccl all-reduce of 2 ranks: no answer within 1 s"):
        prove_collective(2, "nccl", 1.0)
    assert still_running(MARK) == []
