"""The closed set of conditions that a rule may use: checked against the vocabulary, true, false or unknown of facts."""

from __future__ import annotations

import operator
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from packaging.version import InvalidVersion, Version
from pydantic import Field

from builder.document import Document
from builder.preflight.vocabulary import VOCABULARY, FactValue, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Operand = str | int | float | bool
_EVERY: tuple[Kind, ...] = ("version", "text", "texts", "number", "bytes", "flag")
# Which kinds of fact each predicate can be asked of. An operand that begins with `$` is another fact of the same kind.
PREDICATES: Mapping[str, tuple[Kind, ...]] = {
    "known": _EVERY,
    "is": ("version", "text", "flag", "number"),
    "one_of": ("text",),
    "holds_any_of": ("texts",),
    "empty": ("texts",),
    "older_than": ("version",),
    "at_least": ("version",),
    "differs_from": ("version",),
    "major_differs_from": ("version",),
    "minor_differs_from": ("version",),
    "below": ("number", "bytes"),
    "above": ("number", "bytes"),
}

_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "is": operator.eq,
    "one_of": lambda value, options: value in options,
    "holds_any_of": lambda value, options: not {*value}.isdisjoint(options),
    "empty": lambda value, wanted: (not value) == wanted,
    "below": operator.lt,
    "above": operator.gt,
}


class Condition(Document):
    """One question about one fact, or several joined by `all`, `any` or `not`; exactly one of them."""

    fact: str | None = None
    known: bool | None = None
    is_: Annotated[Operand | None, Field(alias="is")] = None
    one_of: Annotated[tuple[str, ...] | None, Field(alias="one-of")] = None
    holds_any_of: Annotated[tuple[str, ...] | None, Field(alias="holds-any-of")] = None
    empty: bool | None = None
    older_than: Annotated[str | None, Field(alias="older-than")] = None
    at_least: Annotated[str | None, Field(alias="at-least")] = None
    differs_from: Annotated[str | None, Field(alias="differs-from")] = None
    major_differs_from: Annotated[str | None, Field(alias="major-differs-from")] = None
    minor_differs_from: Annotated[str | None, Field(alias="minor-differs-from")] = None
    below: str | int | float | None = None
    above: str | int | float | None = None
    all_: Annotated[tuple[Condition, ...] | None, Field(alias="all")] = None
    any_: Annotated[tuple[Condition, ...] | None, Field(alias="any")] = None
    not_: Annotated[Condition | None, Field(alias="not")] = None

    @property
    def question(self) -> tuple[str, Operand | tuple[str, ...]] | None:
        """The one predicate about the fact and its operand, or None for a joined condition."""
        given = [(name, getattr(self, "is_" if name == "is" else name)) for name in PREDICATES]
        asked = [(name, value) for name, value in given if value is not None]
        return asked[0] if len(asked) == 1 else None


def problems_of(condition: Condition) -> Iterator[str]:
    """Yield what makes a condition meaningless: no such fact, a predicate that its kind does not have, no question."""
    joined = [*(condition.all_ or ()), *(condition.any_ or ()), *((condition.not_,) if condition.not_ else ())]
    if joined:
        if condition.fact is not None or condition.question is not None:
            yield "a joined condition asks no question of its own"
        for inner in joined:
            yield from problems_of(inner)
        return
    question = condition.question
    spec = VOCABULARY.get(condition.fact or "")
    if spec is None or question is None:
        yield f"no such fact, or not exactly one question: {condition.fact!r}"
        return
    name, operand = question
    if spec.kind not in PREDICATES[name]:
        yield f"{name} cannot be asked of {condition.fact}, which is {spec.kind}"
    if isinstance(operand, str) and operand.startswith("$"):
        other = VOCABULARY.get(operand[1:])
        if other is None or other.kind != spec.kind:
            yield f"{operand} is no {spec.kind} to compare {condition.fact} with"


def holds(condition: Condition, facts: Mapping[str, FactValue]) -> bool | None:
    """Say whether a condition is true, false, or unknown (None) because a fact of it is not known."""
    if condition.all_ is not None:
        return _all([holds(inner, facts) for inner in condition.all_])
    if condition.any_ is not None:
        inverse = _all([_inverse(holds(inner, facts)) for inner in condition.any_])
        return _inverse(inverse)
    if condition.not_ is not None:
        return _inverse(holds(condition.not_, facts))
    question = condition.question
    if condition.fact is None or question is None:
        return None
    return _ask(facts.get(condition.fact), *question, facts)


def _all(answers: list[bool | None]) -> bool | None:
    return False if False in answers else None if None in answers else True


def _inverse(answer: bool | None) -> bool | None:  # noqa: FBT001 - three values
    return None if answer is None else not answer


def _ask(
    value: FactValue | None, predicate: str, operand: Operand | tuple[str, ...], facts: Mapping[str, FactValue]
) -> bool | None:
    if predicate == "known":
        return (value is not None) == operand
    other = facts.get(operand[1:]) if isinstance(operand, str) and operand.startswith("$") else operand
    if value is None or other is None:
        return None
    if "version" in PREDICATES[predicate] and predicate != "is":
        return _compare_versions(predicate, str(value), str(other))
    return _TESTS[predicate](value, other)


def _compare_versions(predicate: str, value: str, other: str) -> bool | None:
    left, right = public_version(value), public_version(other)
    if left is None or right is None:
        return None
    match predicate:
        case "older_than":
            return left < right
        case "at_least":
            return left >= right
        case "major_differs_from":
            return left.major != right.major
        case "minor_differs_from":
            return (left.major, left.minor) != (right.major, right.minor)
        case _:
            return left != right


@cache
def public_version(text: str) -> Version | None:
    """Return a version without its local part (`+cu130`), or None for text that is no version."""
    try:
        return Version(Version(text).public)
    except InvalidVersion:
        return None


def newest(versions: Iterable[str]) -> str:
    """Return the newest of some versions (at least one); text that is no version counts as oldest."""
    return max(versions, key=lambda text: public_version(text) or Version("0"))
