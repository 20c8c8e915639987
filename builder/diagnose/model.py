"""The diagnosis as frozen values: what a log says, and what it makes likely."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field

from builder.document import Document

Phase = Literal[
    "unknown",
    "resolve",
    "wheel build",
    "image build",
    "container start",
    "import",
    "model load",
    "cuda graph capture",
    "prefill",
    "decode",
]
PHASE_NAMES: tuple[Phase, ...] = get_args(Phase)
Value = str | int | float | bool
ClassName = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
Confidence = Annotated[float, Field(ge=0, le=1)]

UNKNOWN = "unknown"


class Evidence(Document):
    """A line of the log: its number from 1, its text without colours, its rank and file where there are several."""

    line: int
    text: str
    rank: str | None = None
    log: str | None = None


class Misleading(Document):
    """A line that looks guilty, and why it is not."""

    line: int
    text: str
    why: str


class Edit(Document):
    """A change to the recipe: a dotted path into it (`serve.args.kv-cache-dtype`), the new value, the reason."""

    path: Annotated[str, Field(pattern=r"^[a-z]+(\.[A-Za-z0-9_.+-]+)*$")]
    value: Value | tuple[str, ...]
    reason: str = ""


class Cause(Document):
    """One explanation of the failure; `finding` names the piece of knowledge, `confidence` is that of the class."""

    model_config = ConfigDict(populate_by_name=True)

    kind: Annotated[ClassName, Field(alias="class")]
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    remedy: str
    edits: tuple[Edit, ...] = ()
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

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document of `envbuild diagnose --json`: phase, causes, misleading."""
        return {
            "phase": self.phase,
            "causes": [
                {
                    "class": cause.kind,
                    "confidence": cause.confidence,
                    "evidence": [evidence.to_plain() for evidence in cause.evidence],
                    "remedy": cause.remedy,
                    "edits": [edit.to_plain() for edit in cause.edits],
                }
                for cause in self.causes
            ],
            "misleading": [line.to_plain() for line in self.misleading],
        }
