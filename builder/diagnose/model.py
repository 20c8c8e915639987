"""The diagnosis as frozen values: what a log says, and what it makes likely."""

from __future__ import annotations

from builder.document import Document
from builder.verify.reported import (
    Evidence,
    Misleading,
    Phase,
    Reported,
    ReportedCause,
    Value,
)

UNKNOWN = "unknown"


class Cause(ReportedCause):
    """One explanation of the failure; `finding` names the piece of knowledge, `confidence` is that of the class."""

    finding: str
    cause: str
    because: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


class Failure(Document):
    """The first thing that went wrong, in time, and where; `time` is as the log writes it."""

    line: int
    text: str
    rank: str | None = None
    time: str | None = None


class Facts(Document):
    """What the log, then the lock, then the recipe say about the stack: versions, settings, environment, GPU."""

    versions: dict[str, str] = {}
    settings: dict[str, Value] = {}
    env: dict[str, str] = {}
    gpu: str | None = None
    capability: str | None = None


class Diagnosis(Document):
    """The whole answer: `causes` is empty where nothing is known to be wrong."""

    phase: Phase
    causes: tuple[Cause, ...]
    misleading: tuple[Misleading, ...] = ()
    first: Failure | None = None
    consequences: tuple[Evidence, ...] = ()
    facts: Facts = Facts()
    lines: int = 0

    @property
    def reported(self) -> Reported:
        """What a verdict and `envbuild diagnose --json` say of it."""
        causes = tuple(
            ReportedCause(
                kind=cause.kind,
                confidence=cause.confidence,
                evidence=cause.evidence,
                remedy=cause.remedy,
                edits=cause.edits,
            )
            for cause in self.causes
        )
        return Reported(phase=self.phase, causes=causes, misleading=self.misleading)
