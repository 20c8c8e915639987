"""What somebody asks of an image before they run it: a document of a few lines, read strictly."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Literal

import yaml
from pydantic import Field

from builder.document import Document
from builder.errors import InvalidDocumentError, UsageError
from builder.verify.verdict import Level

if TYPE_CHECKING:
    from pathlib import Path

_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_AGES = "write hours, days or weeks: 12h, 30d, 4w"
_SPAN = re.compile(r"([1-9][0-9]{0,5})([hdw])")


class Policy(Document):
    """The conditions; all that is left out is not asked for, but no waiver is accepted that is not named."""

    version: Literal[1] = 1
    target: Annotated[str | None, Field(description="the GPU that the image must be for")] = None
    levels: Annotated[tuple[Level, ...], Field(strict=False, description="the checks that must have passed")] = ()
    max_age: Annotated[str | None, Field(alias="max-age", description="how old the verdict may be, such as 30d")] = None
    waivers: Annotated[tuple[str, ...], Field(strict=False, description="the preflight rules that may be waived")] = ()

    @property
    def span(self) -> timedelta | None:
        """How old the verdict may be."""
        return span_of(self.max_age) if self.max_age is not None else None


def read_policy(path: Path) -> Policy:
    """Read a policy; raises InvalidDocumentError."""
    try:
        plain = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise InvalidDocumentError(f"{path}: {str(error).splitlines()[0]}") from None
    except OSError as error:
        raise InvalidDocumentError(f"{path}: cannot be read: {error.strerror}") from None
    policy = Policy.from_json(json.dumps(plain, default=str), source=str(path))
    if policy.max_age is not None and not _SPAN.fullmatch(policy.max_age):
        raise InvalidDocumentError(f"{path}: max-age: {policy.max_age!r} is no age", remedy=_AGES)
    return policy


def span_of(text: str) -> timedelta:
    """Return how long `12h`, `30d` or `4w` is; raises UsageError for other texts."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is no age", remedy=_AGES)
    return int(found[1]) * _UNITS[found[2]]
