from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from builder.errors import InvalidDocumentError, NotVerifiedError
from builder.store import Store
from builder.verify.record import keep_proof, read_verdict, recorded_verdict
from builder.verify.verdict import Check, Verdict, judge

if TYPE_CHECKING:
    from pathlib import Path

    from builder.verify.verdict import Level, Outcome


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def check(level: Level, outcome: Outcome, summary: str = "seen") -> Check:
    return Check(name=level, level=level, outcome=outcome, summary=summary, figures={"seconds": 1.5})


def verdict(**changes: object) -> Verdict:
    values = {
        "recipe": "quickstart",
        "result": "good",
        "cause": "1 check passed: static",
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
    both = [check("static", "passed"), check("cpu-decode", "passed")]
    assert judge(both, ["static", "cpu-decode"]) == ("good", "2 checks passed: static, cpu-decode")
    assert judge(both[:1], ["static"]) == ("good", "1 check passed: static")


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


def test_a_verdict_survives_the_disk(tmp_path: Path, store: Store) -> None:
    keep_proof(verdict(), tmp_path / "verdict.json", store)
    assert read_verdict(tmp_path / "verdict.json") == verdict()


def test_the_same_proof_on_another_day_leaves_the_file_alone_and_is_what_is_believed(
    tmp_path: Path, store: Store
) -> None:
    path, today = tmp_path / "verdict.json", verdict(finished="2027-01-01T00:00:00+00:00", engine={"version": "28"})
    keep_proof(verdict(), path, Store(tmp_path / "other"))
    committed = path.read_bytes()
    keep_proof(today, path, store)
    assert path.read_bytes() == committed
    assert recorded_verdict(verdict(), path, store, remedy="prove it") == today


def test_another_image_or_result_replaces_the_file(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "verdict.json"
    keep_proof(verdict(), path, store)
    other = verdict(image_id="sha256:" + "d" * 64)
    keep_proof(other, path, store)
    assert read_verdict(path) == other


@pytest.mark.parametrize(
    "changes", [{"waived": {"R05": "on purpose"}}, {"question": {"name": "x"}}, {"sources": {"k": "1"}}]
)
def test_a_verdict_on_other_grounds_was_not_made_here(changes: dict[str, Any], tmp_path: Path, store: Store) -> None:
    path = tmp_path / "verdict.json"
    keep_proof(verdict(), path, store)
    with pytest.raises(NotVerifiedError, match=r"verdict\.json: this verdict was not made on this machine") as caught:
        recorded_verdict(verdict(**changes), path, store, remedy="prove it")
    assert caught.value.remedy == "prove it"


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
