"""What preflight found, as frozen values, and the refusal that follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from builder.document import Document
from builder.errors import PreflightRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable

Severity = Literal["error", "warning", "notice", "ok"]
Certainty = Literal["read", "stated", "reproduced", "derived", "general"]


class Finding(Document):
    """One rule at one place of the recipe; lines and columns count from 1; `waived` is the recipe's reason to go on.

    `ok` is only said of a machine (by `doctor_findings`): a check that found nothing wrong.
    """

    rule: str
    severity: Severity
    sentence: str
    remedy: str = ""
    sources: tuple[str, ...] = ()
    certainty: Certainty = "derived"
    path: str = ""
    line: int | None = None
    column: int | None = None
    waived: str | None = None

    @property
    def refuses(self) -> bool:
        """Whether this finding stops the road."""
        return self.severity == "error" and self.waived is None

    def headline(self, source: str) -> str:
        """Return the finding in one line, as editors read it: `source:line:column: path: rule severity: sentence`."""
        place = f"{source}:{self.line}:{self.column}" if self.line is not None else source
        waived = f" (waived: {self.waived})" if self.waived is not None else ""
        path = f"{self.path}: " if self.path else ""
        return f"{place}: {path}{self.rule} {self.severity}: {self.sentence}{waived}"


def refuse(findings: Iterable[Finding], source: str = "recipe") -> None:
    """Raise PreflightRefusedError if an error is not waived; `source` is the recipe's file name for the message."""
    errors = [finding for finding in findings if finding.refuses]
    if not errors:
        return
    first, *others = errors
    more = f" (and {len(others)} more)" if others else ""
    evidence = [*(finding.headline(source) for finding in others)]
    evidence += [f"{finding.rule}: source: {'; '.join(finding.sources)}" for finding in errors if finding.sources]
    raise PreflightRefusedError(first.headline(source) + more, remedy=first.remedy, evidence=tuple(evidence))
