"""The rules as data: read from `rules/*.yaml`, checked against the vocabulary, applied to facts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from builder.document import Document, pretty_json
from builder.errors import InvalidDocumentError
from builder.preflight.conditions import Condition, holds, problems_of
from builder.preflight.findings import Certainty
from builder.preflight.knowledge.tables import read_plain
from builder.preflight.vocabulary import VOCABULARY, FactValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

FOLDER = Path(__file__).parent / "rules"
_HOLE = re.compile(r"\{([a-z0-9.-]+)\}")
_GIB = 1 << 30


class Case(Document):
    """One way to meet a rule: when it is met, how bad that is, what to say, and what to do about it."""

    when: Annotated[tuple[Condition, ...], Field(min_length=1)]
    severity: Literal["error", "warning", "notice"]
    sentence: str
    remedy: str
    place: Annotated[tuple[str, ...], Field(min_length=1)]


class Rule(Document):
    """One rule: what it guards, its cases (the first that is met speaks), and where it was learned."""

    id: Annotated[str, Field(pattern=r"^[A-Z][0-9]{2}$")]
    guards: str
    cases: Annotated[tuple[Case, ...], Field(min_length=1)]
    sources: Annotated[tuple[str, ...], Field(min_length=1)]
    certainty: Certainty


class _RuleFile(Document):
    rules: tuple[Rule, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Met:
    """A rule that a recipe meets, with the case that speaks."""

    rule: Rule
    case: Case


@cache
def rulebook() -> Mapping[str, Rule]:
    """Return every rule by its id, in the order of ids; raise InvalidDocumentError if a rule makes no sense."""
    rules = sorted(
        (rule for path in sorted(FOLDER.glob("*.yaml")) for rule in read_rules(path)), key=lambda rule: rule.id
    )
    book = {rule.id: rule for rule in rules}
    if len(book) != len(rules):
        raise InvalidDocumentError(f"{FOLDER}: two rules have one id")
    return book


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Read one file of rules; raise InvalidDocumentError that names the rule and what is wrong with it."""
    rules = _RuleFile.from_json(pretty_json(read_plain(path)), source=path.name).rules
    for rule in rules:
        problems = list(_problems(rule))
        if problems:
            raise InvalidDocumentError(f"{path.name}: {rule.id}: {'; '.join(problems)}")
    return rules


def apply_rules(rules: Iterable[Rule], facts: Mapping[str, FactValue]) -> Iterator[Met]:
    """Yield the rules that the facts meet; an unknown fact never meets a rule."""
    for rule in rules:
        for case in rule.cases:
            if all(holds(condition, facts) for condition in case.when):
                yield Met(rule=rule, case=case)
                break


def fill(template: str, facts: Mapping[str, FactValue]) -> str:
    """Return a sentence with the facts in its `{holes}`; sizes are given in GiB."""
    return _HOLE.sub(lambda hole: _said(hole.group(1), facts), template)


def _said(name: str, facts: Mapping[str, FactValue]) -> str:
    value = facts.get(name)
    if value is None:
        return "unknown"
    if isinstance(value, tuple):
        return ", ".join(value)
    if VOCABULARY[name].kind == "bytes" and isinstance(value, int | float):
        return f"{value / _GIB:.1f} GiB" if value >= _GIB else f"{value / (1 << 20):.0f} MiB"
    return str(value)


def _problems(rule: Rule) -> Iterator[str]:
    for case in rule.cases:
        for condition in case.when:
            yield from problems_of(condition)
        for text in (case.sentence, case.remedy, *case.place):
            yield from (f"no fact fills {{{hole}}}" for hole in _HOLE.findall(text) if hole not in VOCABULARY)
