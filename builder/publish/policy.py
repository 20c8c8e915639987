"""What somebody asks of an image before they run it: a document of a few lines, read strictly."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from builder.document import Document
from builder.errors import UsageError
from builder.publish.identity import Identity
from builder.recipe.complaints import complaint_at
from builder.recipe.reading import read_document
from builder.recipe.targets import find_nearest_target, targets
from builder.verify.verdict import Level

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.recipe.yaml_text import Complaint, YamlText

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
    signer: Annotated[Identity | None, Field(description="who must have signed; not beside `--key`")] = None

    @property
    def span(self) -> timedelta | None:
        """How old the verdict may be."""
        return span_of(self.max_age) if self.max_age is not None else None


def read_policy(path: Path) -> Policy:
    """Read a policy; raise InvalidDocumentError with every complaint as `file:line:column: path: message`."""
    _, policy = read_document(path, Policy, noun="policy", more=_more)
    return policy


def _more(read: YamlText, _policy: Policy | None) -> Iterator[Complaint]:
    """Yield what the model cannot say: an unknown GPU, an age of another form."""
    gpu, age = read.data.get("target"), read.data.get("max-age")
    if isinstance(gpu, str) and gpu not in targets():
        yield complaint_at(("target",), f"no GPU {gpu!r} is known ({find_nearest_target(gpu)})", read)
    if isinstance(age, str) and not _SPAN.fullmatch(age):
        yield complaint_at(("max-age",), f"{age!r} is no age: {_AGES}", read)


def span_of(text: str) -> timedelta:
    """Return how long `12h`, `30d` or `4w` is; raises UsageError for other texts."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is no age", remedy=_AGES)
    return int(found[1]) * _UNITS[found[2]]
