"""The preflight itself: a recipe, what a lock adds, what a machine adds; every rule that they meet comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from builder.preflight.findings import Finding
from builder.preflight.machine import machine_facts
from builder.preflight.pins import read_pins
from builder.preflight.resources import disk_need
from builder.preflight.rulebook import apply_rules, fill, rulebook
from builder.preflight.serving import serving_facts
from builder.preflight.stack import stack_facts
from builder.preflight.toolchain import toolchain_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.preflight.host import HostFacts
    from builder.preflight.pins import LockFacts
    from builder.preflight.rulebook import Met
    from builder.preflight.vocabulary import Facts
    from builder.recipe.model import Recipe
    from builder.recipe.yaml_text import Location, Place

_WAIVER_RULES = ("W01", "W02")
_ORDER = {"error": 0, "warning": 1, "notice": 2, "ok": 3}


def preflight(
    recipe: Recipe,
    lock_facts: LockFacts | None = None,
    host_facts: HostFacts | None = None,
    *,
    places: Mapping[Location, Place] | None = None,
) -> tuple[Finding, ...]:
    """Return every finding about a recipe, errors first; offline, in milliseconds.

    `places` are the lines and columns of the recipe's keys (`RecipeFile.places`). A waived finding keeps its severity
    and carries the recipe's reason. What is not known (no lock, no machine, a version in no table) meets no rule.
    """
    facts = gather_facts(recipe, lock_facts, host_facts)
    rules = [rule for rule in rulebook().values() if rule.id not in _WAIVER_RULES]
    met = list(apply_rules(rules, facts))
    facts |= _waiver_facts(recipe, {one.rule.id for one in met})
    met += apply_rules([rulebook()[rule] for rule in _WAIVER_RULES], facts)
    findings = [_finding(one, facts, recipe, places or {}) for one in met]
    return tuple(sorted(findings, key=lambda finding: (_ORDER[finding.severity], finding.rule)))


def gather_facts(recipe: Recipe, lock_facts: LockFacts | None, host_facts: HostFacts | None) -> Facts:
    """Return everything that is known, by the names of the vocabulary; what is not known is left out."""
    pins = read_pins(recipe, lock_facts)
    found = {
        **stack_facts(pins),
        **toolchain_facts(pins),
        **serving_facts(pins),
        **(machine_facts(host_facts, pins.target) if host_facts else {}),
        "disk.need": disk_need(lock_facts),
    }
    return {name: value for name, value in found.items() if value is not None}


def _waiver_facts(recipe: Recipe, met: set[str]) -> Facts:
    return {
        "waive.unknown": tuple(rule for rule in recipe.waive if rule not in rulebook()),
        "waive.unused": tuple(rule for rule in recipe.waive if rule in rulebook() and rule not in met),
    }


def _finding(met: Met, facts: Facts, recipe: Recipe, places: Mapping[Location, Place]) -> Finding:
    path = _choose_path([fill(place, facts) for place in met.case.place], recipe)
    line, column = _place_of(path, recipe, places)
    return Finding(
        rule=met.rule.id,
        severity=met.case.severity,
        sentence=fill(met.case.sentence, facts),
        remedy=fill(met.case.remedy, facts),
        sources=met.rule.sources,
        certainty=met.rule.certainty,
        path=path,
        line=line,
        column=column,
        waived=recipe.waive.get(met.rule.id),
    )


def _choose_path(candidates: list[str], recipe: Recipe) -> str:
    """Return the first place that the recipe has, else the first one: where the missing line belongs."""
    plain = recipe.to_plain()
    return next((path for path in candidates if _location(path, plain)[1]), candidates[0])


def _place_of(path: str, recipe: Recipe, places: Mapping[Location, Place]) -> tuple[int | None, int | None]:
    location, _ = _location(path, recipe.to_plain())
    while location and location not in places:
        location = location[:-1]
    return places.get(location, (None, None))


def _location(path: str, plain: dict[str, Any]) -> tuple[Location, bool]:
    """Return how far a path leads into the recipe, in the recipe's own spelling, and whether to its end."""
    location: list[str] = []
    node: Any = plain
    for part in path.split("."):
        key = _spelling(part, node) if isinstance(node, dict) else None
        if key is None:
            return tuple(location), False
        location.append(key)
        node = node[key]
    return tuple(location), True


def _spelling(part: str, keys: Iterable[str]) -> str | None:
    return next((key for key in keys if key == part or canonicalize_name(key) == part), None)
