"""The verdict as frozen values: what was seen, bound to the digests of what it was seen on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import model_validator

from builder.document import Document
from builder.verify.reported import Reported

if TYPE_CHECKING:
    from collections.abc import Iterable

Outcome = Literal["passed", "failed", "skipped"]
Result = Literal["good", "bad", "unverified"]
Level = Literal["static", "dry-run", "cpu-decode", "program", "gpu-decode", "target-decode"]


class Check(Document):
    """One check: its level, what it saw in one sentence, its figures, and the lines that prove it.

    `log` is the sha256 of all that a failed check's container wrote, in the store of the machine that ran it.
    """

    name: str
    level: Level
    outcome: Outcome
    summary: str
    figures: dict[str, str | int | float | bool] = {}
    evidence: tuple[str, ...] = ()
    log: str | None = None


class Verdict(Document):
    """What is proven of one image. `result` is good only if every required level passed; skipped is not passed.

    `question` is the recipe as it was proven, `sources` are the digests of the folders that it builds from; a stack
    without a recipe has neither. `waived` are the rules of preflight that the recipe overrules, with its reasons;
    `diagnosis` is what the log of the failed check says.
    """

    version: Literal[1] = 1
    recipe: str
    result: Result
    cause: str
    lock_digest: str
    image_id: str
    suite_digest: str
    engine: dict[str, str]
    required: tuple[Level, ...]
    checks: tuple[Check, ...]
    question: dict[str, Any] = {}
    sources: dict[str, str] = {}
    waived: dict[str, str] = {}
    diagnosis: Reported | None = None
    finished: str

    @property
    def gpu(self) -> str | None:
        """The GPU that the image was proven for, by its id; None without a recipe."""
        target = self.question.get("target")
        return str(target.get("gpu")) if isinstance(target, dict) else None

    @model_validator(mode="after")
    def _follows_from_its_checks(self) -> Verdict:
        result, _ = judge(self.checks, self.required)
        if self.result != result:
            raise ValueError(f"the result is {self.result}, but its checks make it {result}")
        return self


def judge(checks: Iterable[Check], required: Iterable[Level]) -> tuple[Result, str]:
    """Return the result and its one-sentence cause: the first failure, else the first required level not proven."""
    seen = tuple(checks)
    needed = tuple(required)
    for check in seen:
        if check.outcome == "failed" and check.level in needed:
            return "bad", f"{check.name}: {check.summary}"
    for level in needed:
        own = [check for check in seen if check.level == level]
        if not own:
            return "unverified", f"{level}: not run"
        for check in own:
            if check.outcome != "passed":
                return "unverified", f"{check.name}: {check.summary}"
    count = f"{len(seen)} checks" if len(seen) > 1 else "1 check"
    return "good", f"{count} passed: {', '.join(check.name for check in seen if check.outcome == 'passed')}"
