"""The reference page of the rules, made from the rules themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.preflight.knowledge.tables import all_tables
from builder.preflight.rulebook import rulebook
from builder.preflight.vocabulary import VOCABULARY
from builder.recipe.generated import GeneratedFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.preflight.conditions import Condition
    from builder.preflight.rulebook import Rule

REFERENCE_PATH = "docs/reference/rules.md"
_INTRODUCTION = """\
# Preflight rules

<!-- Made from builder/preflight/rules and builder/preflight/knowledge by `envbuild schema --write`; do not edit. -->

`envbuild check RECIPE` asks these rules about a recipe, and about its lock and this machine where they are at hand. A
rule speaks through the first of its cases that is met; a fact that is not known meets no case. An error refuses the
recipe, unless the recipe waives the rule with a reason: `waive: {R08: "..."}`. Waived findings are shown and kept.

How sure a rule is: *read* in a program or its metadata, *reproduced* by us, *stated* in the cited thread, *derived*
from other facts, or *general* knowledge.
"""


def rules_reference() -> str:
    """Return the text of the reference page: every rule, then the facts that rules speak of, then the tables."""
    parts = [_INTRODUCTION, *("\n".join(_rule(rule)) for rule in rulebook().values())]
    return "\n".join([*parts, "\n".join(_facts()), "\n".join(_tables())])


def preflight_files() -> tuple[GeneratedFile, ...]:
    """Return the files that are made from the rules."""
    return (GeneratedFile(path=REFERENCE_PATH, text=rules_reference()),)


def _rule(rule: Rule) -> Iterator[str]:
    yield f"## {rule.id}: {rule.guards}\n"
    yield "| when | severity | what is said | what to do |"
    yield "| --- | --- | --- | --- |"
    for case in rule.cases:
        when = " and ".join(_words(condition) for condition in case.when)
        yield f"| {when} | {case.severity} | {case.sentence} | {case.remedy} |"
    yield f"\nSources ({rule.certainty}): {'; '.join(rule.sources)}.\n"


def _words(condition: Condition) -> str:
    """Return a condition as people read it, such as `cuda` older than 12.9."""
    if condition.all_ is not None:
        return "(" + " and ".join(_words(inner) for inner in condition.all_) + ")"
    if condition.any_ is not None:
        return "(" + " or ".join(_words(inner) for inner in condition.any_) + ")"
    if condition.not_ is not None:
        return f"not ({_words(condition.not_)})"
    name, operand = condition.question or ("", "")
    said = ", ".join(operand) if isinstance(operand, tuple) else str(operand).lower()
    said = f"`{said[1:]}`" if said.startswith("$") else said
    return f"`{condition.fact}` {name.replace('_', ' ')} {said}"


def _facts() -> Iterator[str]:
    yield "## Facts\n"
    yield "| fact | kind | meaning |"
    yield "| --- | --- | --- |"
    for name, spec in VOCABULARY.items():
        yield f"| `{name}` | {spec.kind} | {spec.meaning} |"
    yield ""


def _tables() -> Iterator[str]:
    yield "## Tables\n"
    for name, table in all_tables().items():
        yield f"- `{name}`: {getattr(table, 'source', '')}"
    yield ""
