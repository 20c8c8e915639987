"""What a source tree declares of itself in its pyproject.toml: dependencies and build requirements."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.errors import InvalidDocumentError, ResolveError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from packaging.metadata import RawMetadata

    from builder.recipe.model import Package
    from builder.recipe.source import RecipeFile

# What a tree without [build-system] is built with (PEP 518).
DEFAULT_BUILD_REQUIREMENTS = ("setuptools>=40.8.0", "wheel")
EXTRA = re.compile(r'extra == "([^"]+)"')
DYNAMIC = frozenset({"dependencies", "optional-dependencies"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """The declarations of one source tree, each list sorted; `extras` are the optional dependencies by extra."""

    name: str
    dependencies: tuple[str, ...]
    extras: Mapping[str, tuple[str, ...]]
    build_requirements: tuple[str, ...]

    def dependencies_with(self, extras: Iterable[str]) -> tuple[str, ...]:
        """Return the dependencies together with those of some extras; raise InvalidDocumentError for an unknown one."""
        wanted, seen, waiting = {*self.dependencies}, set[str](), [canonicalize_name(extra) for extra in extras]
        while waiting:
            extra = waiting.pop()
            if extra not in self.extras:
                raise InvalidDocumentError(
                    f"{self.name} declares no extra {extra!r}", remedy=f"it has {[*self.extras]}"
                )
            seen.add(extra)
            for line in self.extras[extra]:
                requirement = Requirement(line)
                if canonicalize_name(requirement.name) == self.name:  # an extra may be made of others of the package
                    waiting += [inner for inner in map(canonicalize_name, requirement.extras) if inner not in seen]
                else:
                    wanted.add(line)
        return tuple(sorted(wanted))


def read_project(folder: Path, place: str) -> Project:
    """Read the declarations of a source folder; `place` names the recipe's field in errors.

    Raise InvalidDocumentError if the file is missing or wrong, and ResolveError if it leaves its dependencies to code.
    """
    path = folder / "pyproject.toml"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidDocumentError(
            f"{place}: {path} cannot be read: {error.strerror}",
            remedy="give the folder of a Python package, relative to the recipe",
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidDocumentError(f"{place}: {path}: {error}") from None
    plain = _parsed(text, f"{place}: {path}")
    project = plain.get("project")
    if not isinstance(project, dict) or not isinstance(project.get("name"), str):
        raise InvalidDocumentError(f"{place}: {path} has no [project] table with a name (PEP 621)")
    dynamic = DYNAMIC.intersection(project.get("dynamic", ()))
    if dynamic:
        raise ResolveError(
            f"{place}: {path} declares {' and '.join(sorted(dynamic))} as dynamic",
            remedy="write them out in [project]: only declared dependencies can be locked",
        )
    return _of_table(project, plain, place)


def local_declarations(name: str, package: Package, source: RecipeFile) -> Project:
    """Return what a package in a folder beside the recipe declares."""
    place = source.place_of("stack", name, "path")
    return named(name, read_project(source.folder / str(package.path), place), place)


def local_projects(source: RecipeFile) -> dict[str, Project]:
    """Return what the packages in folders beside a recipe declare, by their names in the stack."""
    packages = source.recipe.stack.items()
    return {name: local_declarations(name, package, source) for name, package in packages if package.path is not None}


def named(name: str, project: Project, place: str) -> Project:
    """Return a project that calls itself as the stack calls it; raise InvalidDocumentError for another name."""
    if project.name != canonicalize_name(name):
        raise InvalidDocumentError(
            f"{place}: the package calls itself {project.name}", remedy="use that name in `stack`"
        )
    return project


def source_project(
    name: str,
    place: str,
    *,
    pyproject: str | None,
    pkg_info: str | None,
    said: Sequence[str] | None,
    known: Sequence[str] | None,
) -> Project:
    """Return the declarations of a fetched source, of which no code is run.

    Its dependencies are those `said` in the recipe, else those of `pyproject.toml`, else those of an sdist's PKG-INFO,
    where neither calls them dynamic (PEP 621, PEP 643), else those `known` of the package. Raise ResolveError if there
    are none.
    """
    plain = _parsed(pyproject or "", f"{place}: pyproject.toml")
    table = plain.get("project", {})
    metadata = _fixed_metadata(pkg_info)
    if table and not DYNAMIC.intersection(table.get("dynamic", ())):
        project = _of_table(table, plain, place)
    elif metadata is not None:
        project = _of_metadata(metadata, plain, place)
    else:
        table = {"name": name, **table, "dependencies": _last_resort(table, said, known, place)}
        project = _of_table(table, plain, place)
    return (
        project if said is None else replace(project, dependencies=_requirements(said, f"{place}.build.dependencies"))
    )


def _last_resort(
    table: dict[str, Any], said: Sequence[str] | None, known: Sequence[str] | None, place: str
) -> Sequence[str]:
    """Return the dependencies of a source that leaves at least some of its declarations to code."""
    declared = table.get("dependencies", ()) if table and "dependencies" not in table.get("dynamic", ()) else None
    found = next((lines for lines in (said, declared, known) if lines is not None), None)
    if found is None:
        raise ResolveError(
            f"{place}: the source leaves its dependencies to code, which is not run to lock it",
            remedy=f"write them in {place}.build.dependencies, for example `dependencies: [torch, einops]`",
        )
    return found


def _fixed_metadata(pkg_info: str | None) -> RawMetadata | None:
    """Return the metadata of an sdist if what it requires is the same for every wheel made of it (PEP 643)."""
    from packaging.metadata import parse_email  # noqa: PLC0415 - slow to import, and only sdists need it

    metadata, _ = parse_email(pkg_info or "")
    if "metadata_version" not in metadata or Version(metadata["metadata_version"]) < Version("2.2"):
        return None
    dynamic = {field.lower() for field in metadata.get("dynamic", ())}
    return None if dynamic.intersection({"requires-dist", "provides-extra"}) else metadata


def _of_metadata(metadata: RawMetadata, plain: dict[str, Any], place: str) -> Project:
    """Return what an sdist's metadata declares; a marker with `extra == "x"` puts a requirement into the extra x."""
    lines = [Requirement(line) for line in metadata.get("requires_dist", ())]
    always = [line for line in lines if "extra" not in str(line.marker or "")]
    return Project(
        name=canonicalize_name(metadata["name"]),
        dependencies=tuple(sorted(map(str, always))),
        extras={
            canonicalize_name(extra): tuple(sorted(_without_extra(line) for line in lines if _belongs(line, extra)))
            for extra in metadata.get("provides_extra", ())
        },
        build_requirements=_build_requirements(plain, place),
    )


def _belongs(line: Requirement, extra: str) -> bool:
    found = EXTRA.search(str(line.marker or ""))
    return found is not None and canonicalize_name(found[1]) == canonicalize_name(extra)


def _without_extra(line: Requirement) -> str:
    """Return a requirement of an extra as the extra's own table would say it."""
    marker = EXTRA.sub("", str(line.marker)).strip().removeprefix("and ").removesuffix(" and")
    bare = str(line).partition(";")[0].rstrip()
    return str(Requirement(f"{bare} ; {marker}")) if marker else bare


def _of_table(table: dict[str, Any], plain: dict[str, Any], place: str) -> Project:
    return Project(
        name=canonicalize_name(table["name"]),
        dependencies=_requirements(table.get("dependencies", ()), place),
        extras={
            canonicalize_name(extra): _requirements(lines, place)
            for extra, lines in table.get("optional-dependencies", {}).items()
        },
        build_requirements=_build_requirements(plain, place),
    )


def _build_requirements(plain: dict[str, Any], place: str) -> tuple[str, ...]:
    return _requirements(plain.get("build-system", {}).get("requires", DEFAULT_BUILD_REQUIREMENTS), place)


def _parsed(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidDocumentError(f"{source}: {error}") from None


def _requirements(lines: Iterable[str], place: str) -> tuple[str, ...]:
    return tuple(sorted(_requirement(line, place) for line in lines))


def _requirement(line: str, place: str) -> str:
    try:
        return str(Requirement(line))
    except InvalidRequirement as error:
        raise InvalidDocumentError(f"{place}: {line!r} is no requirement: {str(error).splitlines()[0]}") from None
