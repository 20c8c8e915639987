"""A recipe and the name of a package -> who wants it, as one stretch."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builder.errors import UsageError
from builder.explain.debian import explain_debian
from builder.explain.model import Explanations
from builder.explain.python import explain_python
from builder.lock.changes import packages_of
from builder.lock.stage import locked_recipe

if TYPE_CHECKING:
    from builder.lock.model import Lock
    from builder.recipe.source import RecipeFile
    from builder.tools import Tools

DEBIAN = "deb:"


def explain_package(source: RecipeFile, package: str, tools: Tools) -> Explanations:
    """Return who wants a package of a recipe's lock; `deb:NAME` is a Debian package.

    Raise StaleLockError without a current lock, UsageError, with the nearest names, for a package that is not in it.
    """
    lock = locked_recipe(source)
    if package.startswith(DEBIAN):
        found = explain_debian(source, lock, package.removeprefix(DEBIAN), tools)
    else:
        found = explain_python(source, lock, canonicalize_name(package), tools)
    if not found:
        left_out = _left_out(source, package)
        remedy = "" if left_out else _advice(lock, package)
        raise UsageError(f"the lock of {lock.name} has no package {package!r}{left_out}", remedy=remedy)
    return Explanations(recipe=str(source.path), package=package, parts=found)


def _left_out(source: RecipeFile, package: str) -> str:
    """Return which override keeps a package out, and why; empty if none does."""
    for name, override in source.recipe.overrides.items():
        if override.absent and canonicalize_name(name) == canonicalize_name(package):
            return f": {source.place_of('overrides', name)} leaves it out: {override.reason}"
    return ""


def _advice(lock: Lock, package: str) -> str:
    known = {f"{DEBIAN}{each.name}" if each.world == "debian" else each.name: each.name for each in packages_of(lock)}
    same = [shown for shown, name in known.items() if name == package.removeprefix(DEBIAN)]
    near = same or difflib.get_close_matches(package, sorted(known), n=3)
    return f"did you mean {', '.join(near)}?" if near else "see its packages in pylock.toml and lock.yaml"
