"""Known releases whose GLM-5 code differs from the model's configuration: a hint beside what was seen, no verdict."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

import yaml
from packaging.version import InvalidVersion, Version
from pydantic import Field

from builder.document import Document

if TYPE_CHECKING:
    from collections.abc import Mapping

DATA = "deviations.yaml"


class Deviation(Document):
    """Releases of a package from `since` up to but not including `before` do `what`, as `source` shows.

    `family` names the planted reference that computes the same, if there is one.
    """

    package: str
    since: str = Field(alias="from")
    before: str
    what: str
    source: str
    family: str | None = None

    def concerns(self, versions: Mapping[str, str]) -> bool:
        """Say whether one of the installed versions, by package name, lies in the range."""
        try:
            version = Version(versions[self.package])
        except (KeyError, InvalidVersion):
            return False
        return Version(self.since) <= version < Version(self.before)


def known_deviations() -> tuple[Deviation, ...]:
    """Return all entries of the data file."""
    text = resources.files(__package__).joinpath(DATA).read_text(encoding="utf-8")
    return tuple(Deviation.model_validate(entry) for entry in yaml.safe_load(text))


def deviation_among(versions: Mapping[str, str]) -> Deviation | None:
    """Return the entry that concerns these installed versions, or None."""
    return next((entry for entry in known_deviations() if entry.concerns(versions)), None)
