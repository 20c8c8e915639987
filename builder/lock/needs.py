"""What packages need of each other, by the requirements in their metadata, and what may lie over what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable

Applies = Callable[[str, str], bool]
"""Whether a marker is true where packages are installed, for an extra or for none (the empty text)."""
Needs = Mapping[str, frozenset[str]]
"""The packages that each package needs, directly or through others, by names in normal form."""


def asked_extras(
    requirements: Iterable[str], requires: Mapping[str, tuple[str, ...]], applies: Applies
) -> dict[str, frozenset[str]]:
    """Return the extras asked of each package that the requirements lead to; `requires` says what each one needs."""
    found: set[tuple[str, str]] = set()
    waiting = [pair for line in requirements for pair in _asked(line, "", applies)]
    while waiting:
        name, extra = pair = waiting.pop()
        if pair not in found:
            found.add(pair)
            waiting += [pair for line in requires.get(name, ()) for pair in _asked(line, extra, applies)]
    names = {name for name, extra in found if extra}
    return {name: frozenset(extra for owner, extra in found if owner == name and extra) for name in names}


def needed_packages(requirements: Iterable[str], requires: Mapping[str, tuple[str, ...]], applies: Applies) -> Needs:
    """Return what each package needs, with the extras that are asked of it.

    `requires` says what each package requires, by name in normal form; `requirements` are those that no package makes.
    """
    extras = asked_extras((*requirements, *requires), requires, applies)
    direct = {
        name: {
            asked
            for line in lines
            for extra in ("", *extras.get(name, ()))
            for asked, _ in _asked(line, extra, applies)
        }
        for name, lines in requires.items()
    }
    return {name: _reached(direct[name], direct) for name in direct}


def lies_over(upper: str, lower: str, needs: Needs) -> bool:
    """Say whether files of one package lie over those of another: it needs the other, which does not need it.

    So pip leaves it, which installs dependencies before their dependents and promises no other order ("Installation
    Order" in the documentation of `pip install`).
    """
    above, below = canonicalize_name(upper), canonicalize_name(lower)
    return below in needs.get(above, ()) and above not in needs.get(below, ())


def _reached(first: Iterable[str], direct: Mapping[str, Iterable[str]]) -> frozenset[str]:
    found: set[str] = set()
    waiting = list(first)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += direct.get(name, ())
    return frozenset(found)


def _asked(line: str, extra: str, applies: Applies) -> list[tuple[str, str]]:
    """Return the package that a requirement asks for, once without and once with each extra, where it applies.

    A line from before PEP 508 asks for nothing, as in pip.
    """
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return []
    if requirement.marker is not None and not applies(str(requirement.marker), extra):
        return []
    return [(canonicalize_name(requirement.name), asked) for asked in ("", *map(canonicalize_name, requirement.extras))]
