"""The page of benchmarks says what the records say."""

from __future__ import annotations

import sys
from pathlib import Path

from builder.process import run

PROJECT = Path(__file__).parents[2]


def test_the_page_is_made_from_the_committed_records() -> None:
    assert run([sys.executable, str(PROJECT / "benchmarks" / "readme.py"), "--check"]).code == 0
