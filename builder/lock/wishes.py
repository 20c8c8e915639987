"""Which place of a recipe asks for which requirement: of the image's wheels, and of the toolchain's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.lock.requirements import built_packages, requirements_of, separate_compiler, toolchain_requirements

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.lock.project import Project
    from builder.recipe.model import Recipe

Place = tuple[str, ...]
Wishes = dict[str, tuple[Place, ...]]
"""Places in the recipe, such as `("stack", "torch")`, by the requirement that they ask for."""


def stack_wishes(recipe: Recipe, projects: Mapping[str, Project]) -> Wishes:
    """Return who asks for each requirement of the image's wheels; `projects` are what compiled packages declare."""
    built = built_packages(recipe)
    wishes: Wishes = {}
    for name, alone, own in _entries(recipe, projects):
        for line in requirements_of(alone, own):
            if canonicalize_name(Requirement(line).name) not in built:
                wishes[line] = (*wishes.get(line, ()), ("stack", name))
    return wishes


def toolchain_wishes(recipe: Recipe, projects: Mapping[str, Project]) -> Wishes:
    """Return who asks for each requirement of the toolchain's wheels: `cuda` for the compiler, else the packages."""
    asking: dict[str, list[Place]] = {}
    for name, alone, own in _entries(recipe, projects):
        for line in toolchain_requirements(alone, own):
            asking.setdefault(_name(line), []).append(("stack", name))
    return {
        line: (("cuda",),) if _name(line) == "cuda-toolkit" else tuple(asking.get(_name(line), ()))
        for line in toolchain_requirements(recipe, projects)
    }


def compiler_wishes(recipe: Recipe, projects: Mapping[str, Project]) -> Wishes:
    """Return who asks for each requirement of a compiler in an environment of its own: `cuda`."""
    return dict.fromkeys(separate_compiler(recipe, projects), (("cuda",),))


def _entries(recipe: Recipe, projects: Mapping[str, Project]) -> Iterator[tuple[str, Recipe, Mapping[str, Project]]]:
    """Yield each package of the stack with a recipe that has no other, and what it declares if it is compiled."""
    for name, package in recipe.stack.items():
        own = {name: projects[name]} if name in projects else {}
        yield name, recipe.model_copy(update={"stack": {name: package}}), own


def _name(line: str) -> str:
    return canonicalize_name(Requirement(line).name)
