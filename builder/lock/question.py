"""What the lock of a recipe answers, as plain data; two questions that differ are told apart by field."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from builder.errors import ResolveError
from builder.lock.patchfiles import locked_patches
from builder.lock.project import local_declarations
from builder.lock.requirements import BUILD_TOOLS, COMPILER_PARTS, INSTALLER, build_requirements, built_packages
from builder.recipe.model import BuildSettings
from builder.recipe.packages import known_package

if TYPE_CHECKING:
    from builder.recipe.model import Package, Recipe
    from builder.recipe.source import RecipeFile

# What an image with a Python inference stack needs: torch's libraries link libstdc++ and libgomp, which Debian's
# python3 does not bring.
BASE_PACKAGES = ("ca-certificates", "libgomp1", "libstdc++6", "python3")

# What nvcc and Python's extension modules need to compile. torch's cpp_extension bounds gcc below 16 for CUDA 13.0 and
# has no entry for 13.1; bookworm has gcc 12, trixie has 14.
TOOLCHAIN_PACKAGES = ("binutils", "ccache", "g++", "gcc", "make", "python3-dev")


def question_of(source: RecipeFile) -> dict[str, Any]:
    """Return what the lock of a recipe answers, as plain data: equal questions have equal answers."""
    recipe = source.recipe
    compiled = built_packages(recipe)
    if recipe.base.image is not None:
        if compiled:
            raise ResolveError(
                f"{source.place_of('base', 'image')}: {', '.join(compiled)} must be compiled, and a toolchain is made "
                "only on top of a Debian base",
                remedy="write `base: {debian: trixie}`, or take released wheels for this image",
            )
        return {"base": {"image": recipe.base.image}, "python": python_question(source)}
    return {
        "debian": {
            "suite": recipe.base.debian,
            "base": sorted({*BASE_PACKAGES, *recipe.base.packages}),
            "toolchain": sorted(TOOLCHAIN_PACKAGES) if compiled else [],
        },
        "python": python_question(source),
    }


def changed_fields(old: Any, new: Any, path: str = "") -> tuple[str, ...]:  # noqa: ANN401 - JSON values
    """Return the dotted paths at which two plain values differ, each with the old and the new value."""
    if isinstance(old, dict) and isinstance(new, dict):
        return tuple(
            change
            for key in sorted({*old, *new})
            for change in changed_fields(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
        )
    return () if old == new else (f"{path} ({_shown(old)} -> {_shown(new)})",)


def _shown(value: Any) -> str:  # noqa: ANN401 - JSON values
    text = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def python_question(source: RecipeFile) -> dict[str, Any]:
    """Return everything that the Python world of a lock depends on, as plain data without empty fields."""
    recipe = source.recipe
    question = {
        "python": recipe.python,
        "as-of": recipe.as_of,
        "stack": {name: _source(name, package, source) for name, package in sorted(recipe.stack.items())},
        "cuda": recipe.cuda if built_packages(recipe) else None,
        "tools": _tool_names(recipe),
        "overrides": {name: override.answer for name, override in sorted(recipe.overrides.items())},
        "indexes": {
            name: {"url": index.url, "packages": sorted(index.packages)}
            for name, index in sorted(recipe.indexes.items())
        },
    }
    return {field: value for field, value in question.items() if value}


def _tool_names(recipe: Recipe) -> list[str]:
    if not built_packages(recipe):
        return [INSTALLER]
    return [*BUILD_TOOLS, *(COMPILER_PARTS if recipe.cuda else ())]


def _source(name: str, package: Package, source: RecipeFile) -> dict[str, Any]:
    """Return what of one pin the lock depends on: not where a local tree is, but what it declares."""
    if package.path is not None:
        project = local_declarations(name, package, source)
        return {
            "dependencies": list(project.dependencies_with(package.extras)),
            "build-requires": list(build_requirements(name, package, project)),
        }
    plain = package.to_plain()
    fields = ("version", "git", "commit", "subdirectory", "extras", "fixes")
    found = {field: plain[field] for field in fields if plain.get(field)}
    if package.extras:
        found["extras"] = sorted(package.extras)
    if package.from_source:
        found |= _compilation(name, package, source)
    return found


def _compilation(name: str, package: Package, source: RecipeFile) -> dict[str, Any]:
    """Return what of a fetched source's compilation the lock depends on, the bytes of its patches among it."""
    known, build = known_package(name), package.build or BuildSettings()
    dependencies = known.dependencies if build.dependencies is None else build.dependencies
    patches = locked_patches(package.patches, source.folder, source.place_of("stack", name, "patches"))
    return {
        "build-requires": sorted({*known.requires, *build.requires}),
        **({"dependencies": sorted(dependencies)} if dependencies is not None else {}),
        **({"patches": [patch.to_plain() for patch in patches]} if patches else {}),
    }
