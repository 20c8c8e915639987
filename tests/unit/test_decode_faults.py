"""The table of planted faults: it says what the records say, and the records hold what the page promises."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "docs" / "evidence" / "decode-faults"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "decode_faults"))
    return importlib.import_module("table")


def records(name: str) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in json.loads((EVIDENCE / f"{name}.json").read_text())}


def test_the_page_is_what_the_records_say(table: ModuleType) -> None:
    assert table.PAGE.read_text() == table.page()


def test_enough_faults_are_planted_and_enough_of_both_sets_are_caught(table: ModuleType) -> None:
    assert len(table.FITTED) + len(table.HELD_OUT) >= 40
    assert not table.FITTED.keys() & table.HELD_OUT.keys()
    cpu, small, large = (records(name) for name in table.COLUMNS)
    for faults, least in ((table.FITTED, 0.95), (table.HELD_OUT, 0.9)):
        assert sum(cpu[name]["caught"] for name in faults) >= least * len(faults)
        assert all(cpu[name]["caught"] or small[name]["caught"] or large[name]["caught"] for name in faults)


def test_no_honest_run_was_flagged_and_there_are_enough_of_them(table: ModuleType) -> None:
    runs = table.honest_runs()
    assert len(runs) >= 30
    assert [run for run in runs if run["caught"]] == []


def test_a_cell_says_what_caught_the_fault(table: ModuleType) -> None:
    seen = {"caught": True, "all_tokens": 8, "all_tokens_right": 8, "by": "the mean margin is"}
    ratios = {"lowest_mean_margin_ratio": 0.9, "highest_mean_margin_ratio": 1.3, "lowest_min_margin_ratio": 0.5}
    assert table.cell(seen | ratios) == "130.00%"
    assert table.cell(seen | ratios | {"all_tokens_right": 3}) == "3 of 8"
    assert table.cell(seen | ratios | {"by": "but the smallest margin is"}) == "smallest margin 50.0%"
    assert table.cell(seen | ratios | {"caught": False}) == "**missed**"
    assert table.cell({"caught": True, "by": "RuntimeError: broken"}) == "RuntimeError: broken"
