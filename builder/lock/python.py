"""The Python world of a lock: what a recipe asks of it, and the wheels that answer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.errors import InvalidDocumentError, ResolveError
from builder.lock.choice import chosen_wheels, locked_wheels, refuse_other_index
from builder.lock.extras import asked_extras, declared_requirements, with_extras
from builder.lock.project import read_project
from builder.lock.pylock import write_pylock
from builder.lock.target import target_of
from builder.lock.uv import Question, ask_uv

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from builder.lock.choice import ChosenWheel
    from builder.lock.model import LockedWheel
    from builder.lock.project import Project
    from builder.lock.target import Target
    from builder.recipe.model import Index, Package, Recipe
    from builder.settings import Settings
    from builder.store import Store

# What compiles a wheel: the front ends, and the parts of NVIDIA's `cuda-toolkit` metapackage that nvcc needs.
BUILD_TOOLS = ("build", "pip")
COMPILER_PARTS = ("cccl", "crt", "cudart", "nvcc", "nvvm")


def built_packages(recipe: Recipe) -> tuple[str, ...]:
    """Return the packages of the stack that are made from source here, and so come from no index."""
    return tuple(sorted(canonicalize_name(name) for name, package in recipe.stack.items() if package.from_source))


def requirements_of(recipe: Recipe, folder: Path) -> tuple[str, ...]:
    """Return what the image's wheels must satisfy: the stack's pins and what its local packages declare, sorted.

    `folder` is where relative paths of the recipe start. Raise ResolveError for sources that cannot be locked so far,
    InvalidDocumentError for a local package without proper declarations.
    """
    built = built_packages(recipe)
    lines: set[str] = set()
    for name, package in recipe.stack.items():
        lines.update(_dependencies(name, package, folder) if package.from_source else (_pin(name, package),))
    return tuple(sorted(line for line in lines if canonicalize_name(Requirement(line).name) not in built))


def toolchain_requirements(recipe: Recipe, folder: Path) -> tuple[str, ...]:
    """Return what the toolchain's wheels must satisfy, sorted; nothing if nothing is compiled.

    A build requirement that the stack pins takes the stack's version, so that it is compiled against what will run.
    """
    built = {name: package for name, package in recipe.stack.items() if package.from_source}
    pins = {canonicalize_name(name): _pin(name, p) for name, p in recipe.stack.items() if not p.from_source}
    lines = {*_tools(recipe)}
    for name, package in built.items():
        for line in _build_requirements(name, package, folder):
            lines.add(pins.get(canonicalize_name(Requirement(line).name), line))
    return tuple(sorted(lines))


def python_question(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Return everything that the Python world of a lock depends on, as plain data without empty fields."""
    question = {
        "python": recipe.python,
        "as-of": recipe.as_of,
        "stack": {name: _source(name, package, folder) for name, package in sorted(recipe.stack.items())},
        "cuda": recipe.cuda if built_packages(recipe) else None,
        "tools": _tool_names(recipe),
        "overrides": {name: override.version for name, override in sorted(recipe.overrides.items())},
        "indexes": {
            name: {"url": index.url, "packages": sorted(index.packages)}
            for name, index in sorted(recipe.indexes.items())
        },
    }
    return {field: value for field, value in question.items() if value}


def resolve_stack(
    recipe: Recipe, folder: Path, store: Store, settings: Settings, *, preferred: Iterable[LockedWheel] = ()
) -> tuple[LockedWheel, ...]:
    """Return the wheels of the image, by name. `preferred` are wheels of a lock before, kept where they can be."""
    return _resolve(recipe, requirements_of(recipe, folder), store, settings, preferred)


def resolve_toolchain(
    recipe: Recipe, folder: Path, store: Store, settings: Settings, *, preferred: Iterable[LockedWheel] = ()
) -> tuple[LockedWheel, ...]:
    """Return the wheels of the toolchain, by name; none if nothing is compiled."""
    return _resolve(recipe, toolchain_requirements(recipe, folder), store, settings, preferred)


def resolve_python(
    requirements: Iterable[str],
    *,
    target: Target,
    store: Store,
    settings: Settings,
    overrides: Iterable[str] = (),
    built: Iterable[str] = (),
    indexes: Mapping[str, Index] | None = None,
    as_of: str | None = None,
    preferred: Iterable[LockedWheel] = (),
) -> tuple[LockedWheel, ...]:
    """Return one wheel for each package that some requirements need on a target, by name.

    `overrides` are requirements that replace all others of their package, but for the extras; `built` packages are left
    out; `as_of` is an ISO date after which no file counts. Raise ResolveError, with uv's explanation as evidence, if
    there is no answer. Files whose size the index does not say are fetched into the store.
    """
    question = Question(
        requirements=tuple(sorted(requirements)),
        target=target,
        overrides=tuple(sorted(overrides)),
        excluded=tuple(sorted(built)),
        indexes=indexes or {},
        as_of=as_of,
    )
    if not question.requirements:
        return ()
    chosen = _chosen(question, write_pylock(preferred, python=target.python), store, settings)
    refuse_other_index(chosen, question.requirements, question.indexes)
    return locked_wheels(chosen, question.indexes, store, settings)


def _resolve(
    recipe: Recipe, requirements: tuple[str, ...], store: Store, settings: Settings, preferred: Iterable[LockedWheel]
) -> tuple[LockedWheel, ...]:
    return resolve_python(
        requirements,
        target=target_of(recipe),
        store=store,
        settings=settings,
        overrides=tuple(_overrides(recipe)),
        built=built_packages(recipe),
        indexes=recipe.indexes,
        as_of=recipe.as_of,
        preferred=preferred,
    )


def _chosen(question: Question, previous: bytes, store: Store, settings: Settings) -> tuple[ChosenWheel, ...]:
    """Ask uv, again as long as an overruled package turns out to be asked for more extras than its override has."""
    requires: dict[str, tuple[str, ...]] = {}
    while True:
        chosen = chosen_wheels(ask_uv(question, previous, store, settings), question.target)
        if not question.overrides:
            return chosen
        unread = [wheel for wheel in chosen if wheel.sha256 not in requires]
        requires |= declared_requirements(unread, question.indexes, store, settings)
        by_name = {wheel.name: requires[wheel.sha256] for wheel in chosen}
        widened = with_extras(question.overrides, asked_extras(question.requirements, by_name, question.target))
        if widened == question.overrides:
            return chosen
        question = replace(question, overrides=widened)


def _pin(name: str, package: Package) -> str:
    extras = f"[{','.join(sorted(package.extras))}]" if package.extras else ""
    return f"{name}{extras}=={package.version}"


def _tools(recipe: Recipe) -> tuple[str, ...]:
    if not built_packages(recipe):
        return ()
    compiler = (f"cuda-toolkit[{','.join(COMPILER_PARTS)}]=={recipe.cuda}.*",) if recipe.cuda else ()
    return (*BUILD_TOOLS, *compiler)


def _tool_names(recipe: Recipe) -> list[str]:
    if not built_packages(recipe):
        return []
    return [*BUILD_TOOLS, *(COMPILER_PARTS if recipe.cuda else ())]


def _dependencies(name: str, package: Package, folder: Path) -> tuple[str, ...]:
    return _project(name, package, folder).dependencies_with(package.extras)


def _build_requirements(name: str, package: Package, folder: Path) -> tuple[str, ...]:
    added = package.build.requires if package.build else ()
    return tuple(sorted({*_project(name, package, folder).build_requirements, *added}))


def _project(name: str, package: Package, folder: Path) -> Project:
    """Return what the source of a package declares; only sources that lie beside the recipe can be read so far."""
    if package.path is None:
        source = "a git commit" if package.git else "its source distribution"
        raise ResolveError(
            f"stack.{name}: building from {source} is not supported yet",
            remedy=f"put the sources beside the recipe and give `path`, or pin a version of {name} that has wheels",
        )
    place = f"stack.{name}.path"
    project = read_project(folder / package.path, place)
    if project.name != canonicalize_name(name):
        raise InvalidDocumentError(
            f"{place}: the package calls itself {project.name}", remedy="use that name in `stack`"
        )
    return project


def _source(name: str, package: Package, folder: Path) -> dict[str, Any]:
    """Return what of one pin the lock depends on: not where a local tree is, but what it declares."""
    plain = package.to_plain()
    fields: dict[str, Any] = {
        field: plain[field] for field in ("version", "git", "commit", "subdirectory") if field in plain
    }
    if package.path is not None:
        fields["dependencies"] = list(_dependencies(name, package, folder))
        fields["build-requires"] = list(_build_requirements(name, package, folder))
    elif package.build is not None:
        fields["build-requires"] = sorted(package.build.requires)
    elif package.extras:
        fields["extras"] = sorted(package.extras)
    return fields


def _overrides(recipe: Recipe) -> Iterator[str]:
    """Yield the overrides as requirements; a pin of the stack that says another version is refused."""
    for name, override in recipe.overrides.items():
        package = recipe.stack.get(name)
        if package is not None and package.version not in {None, override.version}:
            raise InvalidDocumentError(
                f"overrides.{name}: {override.version} contradicts stack.{name}: {package.version}",
                remedy="give both the same version",
            )
        yield f"{name}=={override.version}"
