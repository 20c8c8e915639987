"""Conditions of the knowledge held against what was seen: true with its evidence, or not true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from builder.diagnose.schema import COMPARISONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from builder.diagnose.facts import KnownFacts
    from builder.diagnose.knowledge import Knowledge
    from builder.diagnose.observe import Hit, Observation
    from builder.diagnose.schema import Comparison, Condition
    from builder.verify.reported import Value

LINES_SHOWN = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A condition that holds: the lines that show it, and the facts in words."""

    hits: tuple[Hit, ...] = ()
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """All that a condition can ask."""

    seen: Observation
    known: KnownFacts
    knowledge: Knowledge


def holds(condition: Condition, scene: Scene, *, counts: Callable[[Hit], bool]) -> Held | None:
    """Return what shows that a condition holds, or None; `counts` says whether a line may serve as evidence."""
    lines = _lines_hold(condition, scene, counts)
    if lines is None:
        return None
    facts = scene.known.facts
    parts = (
        _versions_hold(condition.versions, facts.versions),
        _values_hold(condition.settings, facts.settings),
        _values_hold(condition.env, facts.env),
        _capability_holds(condition.capability, facts.capability),
    )
    if any(part is None for part in parts):
        return None
    told = tuple(text for part in parts if part is not None for text in part)
    names = [*(f"version:{n}" for n in condition.versions), *(f"setting:{n}" for n in condition.settings)]
    names += [f"env:{name}" for name in condition.env]
    origins = tuple(scene.known.origins[name] for name in names if name in scene.known.origins)
    return Held(hits=lines + origins, facts=told)


def _lines_hold(condition: Condition, scene: Scene, counts: Callable[[Hit], bool]) -> tuple[Hit, ...] | None:
    if not condition.lines:
        return ()
    sources = scene.knowledge.expand(condition.lines)
    hits = [hit for hit in scene.seen.hits(sources) if counts(hit) and _compares(condition.where, hit)]
    if not hits or (condition.times > 1 and scene.seen.count(sources) < condition.times):
        return None
    if condition.at_end:
        last = scene.seen.last(sources)
        return (last,) if last is not None and scene.seen.is_at_end(last) else None
    return tuple(hits[:LINES_SHOWN])


def _compares(comparisons: tuple[Comparison, ...], hit: Hit) -> bool:
    return all(_compare(comparison, hit.holes) for comparison in comparisons)


def _compare(comparison: Comparison, holes: Mapping[str, str]) -> bool:
    left = holes.get(comparison.left)
    right = holes.get(comparison.right, comparison.right) if isinstance(comparison.right, str) else comparison.right
    if left is None:
        return False
    compare = COMPARISONS[comparison.is_]
    if comparison.by == "text":
        return bool(compare(left, str(right)))
    first, second = _number(left, comparison.by), _number(str(right), comparison.by)
    return first is not None and second is not None and bool(compare(first, second))


def _number(text: str, by: str) -> float | None:
    try:
        if by == "major":
            return float(text.split(".", maxsplit=1)[0])
        return float(int(text, 16)) if text.startswith("0x") else float(text)
    except ValueError:
        return None


def _versions_hold(wanted: Mapping[str, str], known: Mapping[str, str]) -> tuple[str, ...] | None:
    for package, specifier in wanted.items():
        if package not in known or not satisfies(known[package], specifier):
            return None
    return tuple(f"{package} {known[package]} is {specifier}" for package, specifier in wanted.items())


def satisfies(version: str, specifier: str) -> bool:
    """Whether a version satisfies a condition such as `<0.6.7`; a version that is none satisfies nothing."""
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _values_hold(wanted: Mapping[str, tuple[Value, ...]], known: Mapping[str, Value]) -> tuple[str, ...] | None:
    for name, values in wanted.items():
        if name not in known or str(known[name]).lower() not in {str(value).lower() for value in values}:
            return None
    return tuple(f"{name} is {known[name]}" for name in wanted)


def _capability_holds(wanted: tuple[str, ...], known: str | None) -> tuple[str, ...] | None:
    if not wanted:
        return ()
    if known is None or not any(known.startswith(prefix) for prefix in wanted):
        return None
    return (f"the GPU has compute capability {known}",)
