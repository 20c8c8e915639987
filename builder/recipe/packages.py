"""What is known of packages that are often compiled: environment, build requirements, memory, each with its source."""

from __future__ import annotations

import string
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import yaml
from packaging.utils import canonicalize_name
from pydantic import Field, model_validator

from builder.document import Document, pretty_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FOLDER = Path(__file__).with_name("packages")
PLACEHOLDERS = frozenset({"archs", "spaced", "numbers"})
Fact = Annotated[str, Field(min_length=8)]


class KnownPackage(Document):
    """How one package is compiled, under each of its `names`.

    Values of `environment` may hold `{archs}` (12.0;9.0a), `{spaced}` (12.0 9.0a) and `{numbers}` (120;90). `requires`
    are build requirements that the package does not declare; `dependencies` are those of the finished package, for
    sources that leave them to code. `memory_per_job` is in bytes, for one file under compilation. `sources` says where
    each field was learned.
    """

    names: Annotated[tuple[str, ...], Field(min_length=1)]
    environment: dict[str, str] = {}
    requires: tuple[str, ...] = ()
    dependencies: tuple[str, ...] | None = None
    memory_per_job: Annotated[int, Field(gt=0)] | None = None
    sources: dict[str, Fact]

    @model_validator(mode="after")
    def _sound(self) -> KnownPackage:
        said = {*self.model_fields_set} - {"names", "sources"}
        if said != {*self.sources}:
            raise ValueError(f"`sources` must cover exactly the fields given: {', '.join(sorted(said))}")
        used = {field for value in self.environment.values() for _, field, _, _ in string.Formatter().parse(value)}
        if unknown := used - PLACEHOLDERS - {None}:
            raise ValueError(f"unknown placeholders: {sorted(map(str, unknown))}")
        return self

    def environment_for(self, archs: Iterable[str]) -> dict[str, str]:
        """Return the environment of a compilation for some compute capabilities, such as `12.0` and `9.0a`."""
        names = tuple(archs)
        values = {
            "archs": ";".join(names),
            "spaced": " ".join(names),
            "numbers": ";".join(name.rstrip("af").replace(".", "") for name in names),
        }
        return {variable: template.format(**values) for variable, template in self.environment.items()}


@cache
def known_packages() -> Mapping[str, KnownPackage]:
    """Return what is known of packages, by each of their normalized names."""
    found = [_read(path) for path in sorted(FOLDER.glob("*.yaml"))]
    return {canonicalize_name(name): package for package in found for name in package.names}


def known_package(name: str) -> KnownPackage:
    """Return what is known of a package; of an unknown one nothing is, and that is not an error."""
    return known_packages().get(canonicalize_name(name)) or KnownPackage(names=(name,), sources={})


def _read(path: Path) -> KnownPackage:
    plain = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return KnownPackage.from_json(pretty_json(plain), source=path.name)
