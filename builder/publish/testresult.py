"""The verdict as an in-toto test-result (predicate v0.1), with the whole verdict in it, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.document import canonical_json
from builder.errors import InvalidDocumentError
from builder.publish.envelope import UnprovenError
from builder.verify.verdict import Verdict

if TYPE_CHECKING:
    from builder.publish.statements import Statement
    from builder.verify.verdict import Outcome

VERDICT = "envbuild_verdict"  # an extension field, named as in-toto asks for


def result_predicate(verdict: Verdict) -> dict[str, Any]:
    """Return the predicate of a verdict: each check by name, what it was configured by, and the verdict itself."""

    def named(outcome: Outcome) -> list[str]:
        return [check.name for check in verdict.checks if check.outcome == outcome]

    return {
        "result": "PASSED" if verdict.result == "good" else "FAILED",
        "configuration": [
            {"name": "lock", "digest": {"sha256": verdict.lock_digest}},
            {"name": "checks", "digest": {"sha256": verdict.suite_digest}},
        ],
        "passedTests": named("passed"),
        "warnedTests": named("skipped"),
        "failedTests": named("failed"),
        VERDICT: verdict.to_plain(),
    }


def verdict_in(statement: Statement) -> Verdict:
    """Return the verdict of a proven statement; raises UnprovenError if there is none that follows from its checks."""
    try:
        return Verdict.from_json(canonical_json(statement.predicate.get(VERDICT)), source="the attested verdict")
    except InvalidDocumentError as error:
        raise UnprovenError(f"holds no verdict: {error.message}") from None
