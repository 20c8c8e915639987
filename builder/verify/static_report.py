"""What the static probe reports of an image, as frozen values, and how its findings become a check's text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from builder.document import Document

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_EVIDENCE = 40


class SeenDistribution(Document):
    """An installed distribution: its size, and each file that is not as its wheel recorded it."""

    name: str
    version: str
    files: int
    bytes: int
    problems: tuple[str, ...]


class SeenLibrary(Document):
    """A library with device code: how many entries for each architecture, and how the target runs them."""

    distribution: str
    path: str
    codes: dict[str, int]
    usable: Literal["sass", "ptx"] | None
    error: str | None


class SeenImport(Document):
    """The import of a distribution's modules; `failed` is the module that could not be imported."""

    distribution: str
    modules: tuple[str, ...]
    seconds: float
    failed: str | None
    error: str | None
    tail: tuple[str, ...]


class StaticReport(Document):
    """What the probe saw. `others` are distributions outside the folders of the locked ones."""

    distributions: tuple[SeenDistribution, ...]
    others: tuple[str, ...]
    libraries: tuple[SeenLibrary, ...]
    imports: tuple[SeenImport, ...]


def first_of(problems: Sequence[str]) -> str:
    """Return the first problem and how many more there are; empty if there is none."""
    if not problems:
        return ""
    return problems[0] + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")


def shortened(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines of an evidence, the last of them only counted if they are too many."""
    left = len(lines) - MOST_EVIDENCE
    return (*lines[:MOST_EVIDENCE], *([f"… and {left} more"] if left > 0 else []))
