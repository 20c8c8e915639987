"""What a source tree declares of itself in its pyproject.toml: dependencies and build requirements."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.errors import InvalidDocumentError, ResolveError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

# What a tree without [build-system] is built with (PEP 518).
DEFAULT_BUILD_REQUIREMENTS = ("setuptools>=40.8.0", "wheel")


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """The declarations of one source tree, each list sorted; `extras` are the optional dependencies by extra."""

    name: str
    dependencies: tuple[str, ...]
    extras: Mapping[str, tuple[str, ...]]
    build_requirements: tuple[str, ...]

    def dependencies_with(self, extras: Iterable[str]) -> tuple[str, ...]:
        """Return the dependencies together with those of some extras; raise InvalidDocumentError for an unknown one."""
        wanted = {*self.dependencies}
        for extra in extras:
            if extra not in self.extras:
                raise InvalidDocumentError(
                    f"{self.name} declares no extra {extra!r}", remedy=f"it has {[*self.extras]}"
                )
            wanted.update(self.extras[extra])
        return tuple(sorted(wanted))


def read_project(folder: Path, place: str) -> Project:
    """Read the declarations of a source tree; `place` names the recipe's field in errors.

    Raise InvalidDocumentError if the file is missing or wrong, and ResolveError if it leaves its dependencies to code.
    """
    plain = _read(folder, place)
    project = plain.get("project")
    if not isinstance(project, dict) or not isinstance(project.get("name"), str):
        raise InvalidDocumentError(f"{place}: {folder / 'pyproject.toml'} has no [project] table with a name (PEP 621)")
    dynamic = {"dependencies", "optional-dependencies"}.intersection(project.get("dynamic", ()))
    if dynamic:
        raise ResolveError(
            f"{place}: {folder / 'pyproject.toml'} declares {' and '.join(sorted(dynamic))} as dynamic",
            remedy="write them out in [project]: only declared dependencies can be locked",
        )
    build = plain.get("build-system", {}).get("requires", DEFAULT_BUILD_REQUIREMENTS)
    return Project(
        name=canonicalize_name(project["name"]),
        dependencies=_requirements(project.get("dependencies", ()), place),
        extras={
            canonicalize_name(extra): _requirements(lines, place)
            for extra, lines in project.get("optional-dependencies", {}).items()
        },
        build_requirements=_requirements(build, place),
    )


def _read(folder: Path, place: str) -> dict[str, Any]:
    path = folder / "pyproject.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidDocumentError(
            f"{place}: {path} cannot be read: {error.strerror}",
            remedy="give the folder of a Python package, relative to the recipe",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidDocumentError(f"{place}: {path}: {error}") from None


def _requirements(lines: Iterable[str], place: str) -> tuple[str, ...]:
    return tuple(sorted(_requirement(line, place) for line in lines))


def _requirement(line: str, place: str) -> str:
    try:
        return str(Requirement(line))
    except InvalidRequirement as error:
        raise InvalidDocumentError(f"{place}: {line!r} is no requirement: {str(error).splitlines()[0]}") from None
