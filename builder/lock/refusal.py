"""The places in a recipe of the pins that exclude each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.lock.conflict import UnsatisfiableError, chain_words
from builder.lock.wishes import compiler_wishes, stack_wishes, toolchain_wishes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.lock.project import Project
    from builder.lock.wishes import Place, Wishes
    from builder.recipe.source import RecipeFile


def placed(error: UnsatisfiableError, source: RecipeFile, projects: Mapping[str, Project]) -> UnsatisfiableError:
    """Return the error with `file:line:column: path` before each chain whose first requirement the recipe asks for."""
    if error.conflict is None:
        return error
    wishes = {
        **compiler_wishes(source.recipe, projects),
        **toolchain_wishes(source.recipe, projects),
        **stack_wishes(source.recipe, projects),
    }
    lines = []
    for chain in error.conflict.chains:
        places = [source.place_of(*location) for location in _asking(chain[0].requirement, wishes)]
        lines += [f"{place}: {chain_words(chain)}" for place in places] or [chain_words(chain)]
    return UnsatisfiableError(
        f"{source.path}: {error.message}",
        remedy=error.remedy,
        evidence=(*lines, error.conflict.verdict, *error.conflict.hints),
        conflict=error.conflict,
    )


def _asking(requirement: Requirement, wishes: Wishes) -> tuple[Place, ...]:
    """Return the places of the recipe that ask for exactly this, in whatever order uv writes its bounds."""
    for line, places in wishes.items():
        wish = Requirement(line)
        same_name = canonicalize_name(wish.name) == canonicalize_name(requirement.name)
        if same_name and wish.specifier == requirement.specifier:
            return places
    return ()
