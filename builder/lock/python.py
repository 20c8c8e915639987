"""The Python world of a lock: what a recipe asks of it, and the wheels that answer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.errors import InvalidDocumentError
from builder.lock.choice import chosen_wheels, locked_wheels, refuse_other_index
from builder.lock.extras import asked_extras, declared_requirements, with_extras
from builder.lock.index import mirrored
from builder.lock.patches import locked_patches
from builder.lock.pylock import write_pylock
from builder.lock.sources import local_declarations
from builder.lock.target import target_of
from builder.lock.uv import Question, ask_uv
from builder.recipe.model import BuildSettings
from builder.recipe.packages import known_package

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
INSTALLER = "pip"  # installs the wheels where the rendered Dockerfile is built with plain Docker
COMPILER_PARTS = ("cccl", "crt", "cudart", "nvcc", "nvvm")


def built_packages(recipe: Recipe) -> tuple[str, ...]:
    """Return the packages of the stack that are made from source here, and so come from no index."""
    return tuple(sorted(canonicalize_name(name) for name, package in recipe.stack.items() if package.from_source))


def requirements_of(recipe: Recipe, projects: Mapping[str, Project]) -> tuple[str, ...]:
    """Return what the image's wheels must satisfy: the stack's pins and what its sources declare, sorted.

    `projects` are the declarations of all packages that are compiled, by their names in the stack.
    """
    built = built_packages(recipe)
    lines: set[str] = set()
    for name, package in recipe.stack.items():
        declared = projects[name].dependencies_with(package.extras) if package.from_source else ()
        lines.update(declared if package.from_source else (_pin(name, package),))
    return tuple(sorted(line for line in lines if canonicalize_name(Requirement(line).name) not in built))


def toolchain_requirements(recipe: Recipe, projects: Mapping[str, Project]) -> tuple[str, ...]:
    """Return what the toolchain's wheels must satisfy, sorted; where nothing is compiled, only pip is there to install.

    A build requirement that the stack pins takes the stack's version, so that it is compiled against what will run; if
    it comes from an index of the recipe, so does all that the stack takes from that index: it was made to fit together.
    """
    pins = {canonicalize_name(name): _pin(name, p) for name, p in recipe.stack.items() if not p.from_source}
    lines = {*BUILD_TOOLS} if projects else {INSTALLER}
    for name, project in projects.items():
        for line in _build_requirements(name, recipe.stack[name], project):
            lines.add(pins.get(canonicalize_name(Requirement(line).name), line))
    names = {canonicalize_name(Requirement(line).name) for line in lines}
    for index in recipe.indexes.values():
        tied = {canonicalize_name(package) for package in index.packages}
        lines.update(pins[name] for name in (tied & {*pins} if tied & names else ()))
    if not _has_torch(lines):
        lines.update(compiler_requirements(recipe))
    return tuple(sorted(lines))


def separate_compiler(recipe: Recipe, projects: Mapping[str, Project]) -> tuple[str, ...]:
    """Return what a CUDA compiler in an environment of its own must satisfy; nothing if it lives with the toolchain.

    It lives apart where torch is needed to compile: torch pins the CUDA libraries of its own build, whose release is
    seldom the compiler's, and nvcc refuses headers of another release in its own folder.
    """
    together = not _has_torch(toolchain_requirements(recipe, projects))
    return () if together or not projects else compiler_requirements(recipe)


def compiler_requirements(recipe: Recipe) -> tuple[str, ...]:
    """Return what the CUDA compiler of a recipe is made of; nothing if the recipe names no CUDA toolkit."""
    return (
        (f"cuda-toolkit[{','.join(COMPILER_PARTS)}]=={recipe.cuda}.*",)
        if recipe.cuda and built_packages(recipe)
        else ()
    )


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


def resolve_wheels(
    recipe: Recipe,
    requirements: tuple[str, ...],
    store: Store,
    settings: Settings,
    *,
    preferred: Iterable[LockedWheel] = (),
) -> tuple[LockedWheel, ...]:
    """Return the wheels that satisfy requirements of a recipe's image or toolchain, by name.

    `preferred` are wheels of a lock before, kept where they can be.
    """
    indexes = mirrored(recipe.indexes, settings)
    return resolve_python(
        requirements,
        target=target_of(recipe),
        store=store,
        settings=settings,
        overrides=tuple(_overrides(recipe)),
        built=built_packages(recipe),
        indexes=indexes,
        as_of=recipe.as_of,
        preferred=preferred,
    )


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


def _tool_names(recipe: Recipe) -> list[str]:
    if not built_packages(recipe):
        return [INSTALLER]
    return [*BUILD_TOOLS, *(COMPILER_PARTS if recipe.cuda else ())]


def _has_torch(lines: Iterable[str]) -> bool:
    return any(canonicalize_name(Requirement(line).name) == "torch" for line in lines)


def _build_requirements(name: str, package: Package, project: Project) -> tuple[str, ...]:
    added = package.build.requires if package.build else ()
    return tuple(sorted({*project.build_requirements, *known_package(name).requires, *added}))


def _source(name: str, package: Package, folder: Path) -> dict[str, Any]:
    """Return what of one pin the lock depends on: not where a local tree is, but what it declares."""
    if package.path is not None:
        project = local_declarations(name, package, folder)
        return {
            "dependencies": list(project.dependencies_with(package.extras)),
            "build-requires": list(_build_requirements(name, package, project)),
        }
    plain = package.to_plain()
    fields = ("version", "git", "commit", "subdirectory", "extras", "fixes")
    found = {field: plain[field] for field in fields if plain.get(field)}
    if package.extras:
        found["extras"] = sorted(package.extras)
    if package.from_source:
        found |= _compilation(name, package, folder)
    return found


def _compilation(name: str, package: Package, folder: Path) -> dict[str, Any]:
    """Return what of a fetched source's compilation the lock depends on, the bytes of its patches among it."""
    known, build = known_package(name), package.build or BuildSettings()
    dependencies = known.dependencies if build.dependencies is None else build.dependencies
    patches = locked_patches(package.patches, folder, f"stack.{name}.patches")
    return {
        "build-requires": sorted({*known.requires, *build.requires}),
        **({"dependencies": sorted(dependencies)} if dependencies is not None else {}),
        **({"patches": [patch.to_plain() for patch in patches]} if patches else {}),
    }


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
