"""Which place of a recipe asks for which requirement: of the image's wheels, and of the toolchain's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.lock.python import built_packages, requirements_of, toolchain_requirements

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.recipe.model import Recipe

Place = tuple[str, ...]
Wishes = dict[str, tuple[Place, ...]]
"""Places in the recipe, such as `("stack", "torch")`, by the requirement that they ask for."""


def stack_wishes(recipe: Recipe, folder: Path) -> Wishes:
    """Return who asks for each requirement of the image's wheels; `folder` is where the recipe's paths start."""
    built = built_packages(recipe)
    wishes: Wishes = {}
    for name, alone in _entries(recipe):
        for line in requirements_of(alone, folder):
            if canonicalize_name(Requirement(line).name) not in built:
                wishes[line] = (*wishes.get(line, ()), ("stack", name))
    return wishes


def toolchain_wishes(recipe: Recipe, folder: Path) -> Wishes:
    """Return who asks for each requirement of the toolchain's wheels: `cuda` for the compiler, else the packages."""
    asking: dict[str, list[Place]] = {}
    for name, alone in _entries(recipe):
        for line in toolchain_requirements(alone, folder):
            asking.setdefault(_name(line), []).append(("stack", name))
    return {
        line: (("cuda",),) if _name(line) == "cuda-toolkit" else tuple(asking.get(_name(line), ()))
        for line in toolchain_requirements(recipe, folder)
    }


def _entries(recipe: Recipe) -> Iterator[tuple[str, Recipe]]:
    """Yield each package of the stack with a recipe that has no other."""
    for name, package in recipe.stack.items():
        yield name, recipe.model_copy(update={"stack": {name: package}})


def _name(line: str) -> str:
    return canonicalize_name(Requirement(line).name)
