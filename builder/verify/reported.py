"""What a verdict says of the log of a failed check: the public part of a diagnosis, as `diagnose --json` writes it."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

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
    value: Value | Annotated[tuple[str, ...], Field(strict=False)]
    reason: str = ""


class ReportedCause(Document):
    """One explanation of a failure."""

    model_config = ConfigDict(populate_by_name=True)

    kind: Annotated[ClassName, Field(alias="class")]
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    remedy: str
    edits: tuple[Edit, ...] = ()


class Reported(Document):
    """The phase that was reached, the causes with the likeliest first, and the lines that mislead."""

    phase: Phase
    causes: tuple[ReportedCause, ...]
    misleading: tuple[Misleading, ...] = ()
