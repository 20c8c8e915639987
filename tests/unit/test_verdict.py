from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from builder.errors import InvalidDocumentError
from builder.verify.record import read_verdict, write_verdict
from builder.verify.verdict import Check, Verdict, judge

if TYPE_CHECKING:
    from pathlib import Path

    from builder.verify.verdict import Level, Outcome


def check(level: Level, outcome: Outcome, summary: str = "seen") -> Check:
    return Check(name=level, level=level, outcome=outcome, summary=summary, figures={"seconds": 1.5})


def verdict(**changes: object) -> Verdict:
    values = {
        "recipe": "quickstart",
        "result": "good",
        "cause": "1 checks passed",
        "lock_digest": "a" * 64,
        "image_id": "sha256:" + "b" * 64,
        "suite_digest": "c" * 64,
        "engine": {"version": "20.10"},
        "required": ("static",),
        "checks": (check("static", "passed"),),
        "finished": "2026-11-29T00:00:00+00:00",
    }
    return Verdict.model_validate({**values, **changes})


def test_all_required_levels_passed_is_good() -> None:
    assert judge([check("static", "passed"), check("cpu-decode", "passed")], ["static", "cpu-decode"])[0] == "good"


def test_a_required_level_that_failed_is_bad_and_its_sentence_is_the_cause() -> None:
    checks = [check("static", "passed"), check("cpu-decode", "failed", "token 3 is 7, the program says 9")]
    assert judge(checks, ["static", "cpu-decode"]) == ("bad", "cpu-decode: token 3 is 7, the program says 9")


def test_skipped_is_not_passed() -> None:
    checks = [check("static", "passed"), check("cpu-decode", "skipped", "no engine")]
    assert judge(checks, ["static", "cpu-decode"]) == ("unverified", "cpu-decode: no engine")


def test_a_required_level_that_never_ran_is_unverified() -> None:
    assert judge([check("static", "passed")], ["static", "gpu-decode"]) == ("unverified", "gpu-decode: not run")


def test_a_failure_counts_before_a_skip() -> None:
    checks = [check("static", "skipped"), check("cpu-decode", "failed")]
    assert judge(checks, ["static", "cpu-decode"])[0] == "bad"


def test_a_failed_level_that_is_not_required_does_not_decide() -> None:
    assert judge([check("static", "passed"), check("dry-run", "failed")], ["static"])[0] == "good"


def test_a_verdict_survives_the_disk(tmp_path: Path) -> None:
    write_verdict(tmp_path / "verdict.json", verdict())
    assert read_verdict(tmp_path / "verdict.json") == verdict()


def test_the_same_proof_on_another_day_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    write_verdict(path, verdict())
    write_verdict(path, verdict(finished="2027-01-01T00:00:00+00:00", engine={"version": "28"}))
    assert read_verdict(path) == verdict()


def test_another_image_or_result_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    write_verdict(path, verdict())
    other = verdict(image_id="sha256:" + "d" * 64)
    write_verdict(path, other)
    assert read_verdict(path) == other


def test_a_damaged_verdict_is_named(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    path.write_text('{"version": 1')
    with pytest.raises(InvalidDocumentError, match=r"verdict\.json"):
        read_verdict(path)


def test_there_may_be_no_verdict(tmp_path: Path) -> None:
    assert read_verdict(tmp_path / "verdict.json") is None


def test_a_result_that_its_checks_do_not_give_is_no_verdict(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    forged = verdict().to_plain() | {"checks": [check("static", "failed").to_plain()]}
    path.write_text(json.dumps(forged), encoding="utf-8")
    with pytest.raises(InvalidDocumentError, match="the result is good, but its checks make it bad"):
        read_verdict(path)
