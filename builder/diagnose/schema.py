"""The schema of the knowledge files: signals, conditions, findings, classes, misleading lines, facts."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, Field, model_validator

from builder.diagnose.pattern import PatternError, pattern_of
from builder.document import Document
from builder.verify.reported import ClassName, Confidence, Edit, Phase, Value

if TYPE_CHECKING:
    from collections.abc import Callable

SURE = 0.8


def _pattern(source: str) -> str:
    if source.startswith("@"):
        return source
    try:
        pattern_of(source)
    except PatternError as error:
        raise ValueError(str(error)) from None
    return source


def _specifier(value: str) -> str:
    try:
        SpecifierSet(value)
    except InvalidSpecifier:
        raise ValueError(f"{value!r} is not a version condition like '<0.6.7' or '>=5.2,<6'") from None
    return value


Line = Annotated[str, AfterValidator(_pattern)]
Lines = Annotated[tuple[Line, ...], Field(min_length=1)]
VersionCondition = Annotated[str, AfterValidator(_specifier)]
Sentence = Annotated[str, Field(min_length=8)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "above": operator.gt,
    "below": operator.lt,
    "not": operator.ne,
    "same": operator.eq,
    "double": lambda left, right: left == 2 * right or right == 2 * left,
}


class Comparison(Document):
    """A number (or the major version, or the text) of one hole compared with another hole or a constant.

    `double` holds if either is twice the other, as sizes are where two values share a byte.
    """

    left: str
    is_: Annotated[Literal["above", "below", "not", "same", "double"], Field(alias="is")]
    right: str | int
    by: Literal["number", "major", "text"] = "number"


class Condition(Document):
    """Something that must hold; all parts that are given must hold, and an unknown fact does not.

    `lines`: one of these patterns is in the log (`@name` stands for a named signal); `where` compares their holes.
    `versions`, `settings`, `env`: facts of the log, the lock or the recipe. `capability`: by prefix, as `12.`.
    """

    lines: tuple[Line, ...] = ()
    where: tuple[Comparison, ...] = ()
    versions: dict[str, VersionCondition] = {}
    settings: dict[str, tuple[Value, ...]] = {}
    env: dict[str, tuple[str, ...]] = {}
    capability: tuple[str, ...] = ()
    at_end: bool = False
    times: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _something(self) -> Condition:
        if not (self.lines or self.versions or self.settings or self.env or self.capability):
            raise ValueError("a condition needs lines, versions, settings, env or capability")
        if self.where and not self.lines:
            raise ValueError("`where` compares holes of `lines`")
        return self


class Support(Condition):
    """A condition that makes a finding more likely (or, with a negative figure, less)."""

    adds: Annotated[float, Field(ge=-0.9, le=0.5)]
    because: str = ""


class Finding(Document):
    """One known cause: the lines that show it (the failure first), what speaks for and against it, what to do.

    `direct`: a line names the cause itself; else the confidence stays below 0.8. `tail`: the lines are often only the
    end of another failure, and count only where nothing else explains the log. `warned`: a mere warning is enough.
    `survives`: a server that goes on serving does not disprove it. `refines`: the general finding that it replaces.
    """

    name: Name
    kind: Annotated[ClassName, Field(alias="class")]
    cause: Sentence
    phase: Phase = "unknown"
    confidence: Confidence
    all: Annotated[tuple[Condition, ...], Field(min_length=1)]
    unless: tuple[Condition, ...] = ()
    support: tuple[Support, ...] = ()
    direct: bool = True
    tail: bool = False
    warned: bool = False
    survives: bool = False
    refines: Name | None = None
    remedy: Sentence
    edits: tuple[Edit, ...] = ()
    sources: tuple[str, ...] = ()
    basis: Literal["reproduced", "read", "stated", "derived", "general"] = "stated"

    @model_validator(mode="after")
    def _has_lines(self) -> Finding:
        if not self.all[0].lines:
            raise ValueError(f"{self.name}: the first condition of `all` needs lines: it is the failure to explain")
        return self


class ClassAbout(Document):
    """A class of failures in words: what it is, and what generally helps."""

    title: Sentence
    about: Sentence


class Deceptive(Document):
    """Lines that look guilty, and why they are not: `with` these classes (default: any), `always` even as evidence."""

    lines: Lines
    why: Sentence
    with_: Annotated[tuple[ClassName, ...], Field(alias="with")] = ()
    always: bool = False


class VersionFact(Document):
    """Where a log tells the version of a package: patterns with the hole `value`."""

    package: str
    lines: Lines


class SettingFact(Document):
    """A line that tells a setting of the server: its hole `value`, or a fixed value."""

    setting: str
    lines: Lines
    value: Value | None = None


class EnvFact(Document):
    """An environment variable that logs may set, and lines that show that the server ran as with `value`."""

    variable: str
    lines: Lines = ()
    value: str = ""


class GpuFact(Document):
    """A GPU by the texts that name it, with its compute capability."""

    gpu: str
    capability: str
    lines: Lines


class Marker(Document):
    """Lines that prove that a phase was reached."""

    phase: Phase
    lines: Lines


class Pins(Document):
    """What a release brings with it where nothing else is said (`sglang 0.5.9` pins `flashinfer-python 0.6.3`)."""

    package: str
    version: str
    brings: dict[str, str]


class KnowledgeFile(Document):
    """One file of knowledge; every part may be absent."""

    classes: dict[ClassName, ClassAbout] = {}
    signals: dict[Name, Lines] = {}
    findings: tuple[Finding, ...] = ()
    misleading: tuple[Deceptive, ...] = ()
    markers: tuple[Marker, ...] = ()
    starts: tuple[Line, ...] = ()
    ready: tuple[Line, ...] = ()
    alive: tuple[Line, ...] = ()
    built: tuple[Line, ...] = ()
    stopped: tuple[Line, ...] = ()
    failures: tuple[Line, ...] = ()
    consequences: tuple[Line, ...] = ()
    benign: tuple[str, ...] = ()
    frames: tuple[Line, ...] = ()
    asynchronous: tuple[Line, ...] = ()
    versions: tuple[VersionFact, ...] = ()
    settings: tuple[SettingFact, ...] = ()
    setting_lines: tuple[Line, ...] = ()
    env: tuple[EnvFact, ...] = ()
    gpus: tuple[GpuFact, ...] = ()
    pins: tuple[Pins, ...] = ()
