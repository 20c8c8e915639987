"""The page of benchmarks says what the records say."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import pytest

from builder.process import run

PROJECT = Path(__file__).parents[2]


def test_the_page_is_made_from_the_committed_records() -> None:
    assert run([sys.executable, str(PROJECT / "benchmarks" / "readme.py"), "--check"]).code == 0


def test_a_benchmark_says_what_room_it_needs_and_ends_where_there_is_too_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(PROJECT / "benchmarks")
    matrix = importlib.import_module("matrix")
    folders = [tmp_path / name for name in ("store", "engine")]
    for folder in folders:
        folder.mkdir()
    free = shutil.disk_usage(tmp_path).free // 10**9
    matrix.expect_room(dict.fromkeys(folders, 0))
    assert "GB are free, 0 GB are needed" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=f"{folders[0]} and {folders[1]}: .* GB are free, {2 * free} GB are needed"):
        matrix.expect_room(dict.fromkeys(folders, free))
