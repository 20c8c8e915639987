"""What one run of a variant showed: the result, how far it came, what failed, and what is suspected."""

from __future__ import annotations

from typing import Literal, get_args

from builder.diagnose.model import UNKNOWN
from builder.document import Document
from builder.verify.reported import PHASE_NAMES, Phase, Value
from builder.verify.verdict import Level

Result = Literal["good", "bad", "unverified", "refused", "unresolvable", "unbuildable"]
_STAGES: tuple[Result, ...] = ("refused", "unresolvable", "unbuildable")
_LEVELS: tuple[str, ...] = get_args(Level)


class Suspicion(Document):
    """A cause that the log of a failed run makes likely, and the edits that would cure it, by their dotted path."""

    kind: str
    confidence: float
    edits: dict[str, Value | tuple[str, ...]] = {}


class Outcome(Document):
    """How a run ended. `failure` names what failed in words that the same failure has in every run.

    `level` is the check that failed and `phase` how far the server came, where a verdict says so; `minutes` is what the
    run took; `built` says whether something was compiled or assembled for it.
    """

    result: Result
    cause: str
    failure: str = ""
    level: str = ""
    phase: Phase = "unknown"
    suspicions: tuple[Suspicion, ...] = ()
    lock_digest: str | None = None
    image_id: str | None = None
    log: str | None = None
    minutes: float = 0.0
    built: bool = False

    @property
    def is_judged(self) -> bool:
        """Whether a proof ran and said good or bad."""
        return self.result in {"good", "bad"}

    @property
    def progress(self) -> tuple[int, int, int]:
        """How far the run came; a later failure is greater, and one in a phase that is not known greatest."""
        return *self._reached, PHASE_NAMES.index(self.phase) or len(PHASE_NAMES)

    def came_further_than(self, other: Outcome) -> bool:
        """Whether this run surely came further: to a later check, or to a later phase where both are known."""
        if self._reached != other._reached:
            return self._reached > other._reached
        return "unknown" not in {self.phase, other.phase} and self.progress > other.progress

    @property
    def _reached(self) -> tuple[int, int]:
        stage = _STAGES.index(self.result) if self.result in _STAGES else len(_STAGES) + (self.result == "good")
        return stage, _LEVELS.index(self.level) if self.level in _LEVELS else 0

    def fails_as(self, other: Outcome) -> bool:
        """Whether two bad runs failed in the same check and, as far as it is known, for the same cause."""
        kinds = {each.suspicions[0].kind if each.suspicions else UNKNOWN for each in (self, other)}
        return (self.result, self.level) == (other.result, other.level) and len(kinds - {UNKNOWN}) <= 1
