"""Why no set of wheels satisfies the pins: the shortest chains of requirements that exclude each other.

uv proves it in words (PubGrub's derivation): `Because a==1.0 depends on b<2 and …, we can conclude that …`. The facts
in it that uv read from the index are taken, its conclusions are left out, and the shortest proof is looked for anew.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builder.errors import ResolveError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = "this-recipe"
"""What uv's explanations call the one who asks."""

_PREMISES = re.compile(r"[Bb]ecause (.*?),? we can conclude that ")
_DEPENDS = re.compile(r"^(?:all of: |any of: |all versions of )?(\S+?)(?: .*)? depends? on (.*)$")
_KNOWN = "we know from "
_ONE_OF = "one of: "
_HINT = "hint: "


class UnsatisfiableError(ResolveError):
    """The pins exclude each other; `conflict` is the shortest proof, None where uv's words do not hold one."""

    def __init__(self, message: str, *, remedy: str, evidence: tuple[str, ...], conflict: Conflict | None) -> None:
        super().__init__(message, remedy=remedy, evidence=evidence)
        self.conflict = conflict


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """A package that needs another; `subject` bounds the versions that do (none: all of them, or the recipe)."""

    subject: Requirement
    requirement: Requirement

    @property
    def wanted(self) -> str:
        """The name of the package that is needed."""
        return canonicalize_name(self.requirement.name)

    def follows(self, other: Fact) -> bool:
        """Whether this fact speaks of a package, in a version, that the other one may need."""
        return _node(self.subject) in {_node(other.requirement), other.wanted} and not exclude_each_other(
            self.subject, other.requirement
        )


Chain = tuple[Fact, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Conflict:
    """Chains of requirements from the recipe to one package, and the sentence that says why they cannot all hold.

    The first requirement of a chain is the recipe's own. `hints` are uv's remarks.
    """

    chains: tuple[Chain, ...]
    verdict: str
    hints: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The proof, one chain a line."""
        return (*(chain_words(chain) for chain in self.chains), self.verdict, *self.hints)


def chain_words(chain: Chain) -> str:
    """Return a chain as people read it: `app==1.0 needs lib>=2, lib==2.1 needs base<3`."""
    if len(chain) == 1:
        return f"{chain[0].requirement} is asked for"
    links = itertools.pairwise(chain)
    return ", ".join(
        f"{after.subject if after.subject.specifier else before.requirement} needs {after.requirement}"
        for before, after in links
    )


def find_conflict(explanation: Iterable[str]) -> Conflict | None:
    """Return the shortest proof that uv's explanation holds, or None."""
    facts: list[Fact] = []
    remarks: list[str] = []
    hints: list[str] = []
    for line in explanation:
        if line.startswith(_HINT):
            hints.append(line)
        for premises in _PREMISES.findall(line):
            for premise in _premises(premises):
                found = tuple(_facts(premise))
                facts += found
                remarks += () if found or _DEPENDS.match(premise) else (premise,)
    chains = _shortest_chains(facts)
    return _excluding(chains, facts, tuple(hints)) or _unavailable(chains, remarks, tuple(hints))


def _premises(text: str) -> Iterator[str]:
    """Split what stands between `Because` and `we can conclude`: at ` and `, but not inside a list of requirements."""
    pending = ""
    for part in text.split(" and "):
        bare = part.strip().rstrip(",")
        if pending and " depend" in pending and _requirement(bare) is not None:
            pending += f" and {bare}"
            continue
        if pending:
            yield pending
        pending = bare
    if pending:
        yield pending


def _facts(premise: str) -> Iterator[Fact]:
    match = _DEPENDS.match(premise)
    subject = _requirement(match[1]) if match else None
    if match is None or subject is None or premise.startswith(_KNOWN):
        return
    for word in match[2].split(" and "):
        requirement = _union(word) if word.startswith(_ONE_OF) else _requirement(word)
        if requirement is not None:
            yield Fact(subject=subject, requirement=requirement)


def _union(text: str) -> Requirement | None:
    """Read `one of: lib<1.5 lib>1.5`, uv's words for `lib!=1.5`; the bounds of any other union are left out."""
    ranges = [_requirement(word) for word in text.removeprefix(_ONE_OF).split()]
    known = [each for each in ranges if each is not None]
    if not known:
        return None
    clauses = [clause for each in known for clause in str(each.specifier).split(",")]
    below = {clause[1:] for clause in clauses if re.match(r"<[^=]", clause)}
    holes = below & {clause[1:] for clause in clauses if re.match(r">[^=]", clause)}
    kept = [clause for clause in clauses if clause[1:] not in holes]
    if len(holes) != len(known) - 1:
        kept, holes = [], set()
    return _requirement(_node(known[0]) + ",".join([*kept, *(f"!={hole}" for hole in sorted(holes))]))


def _requirement(text: str) -> Requirement | None:
    try:
        return Requirement(text.strip().rstrip(","))
    except InvalidRequirement:
        return None


def _shortest_chains(facts: list[Fact]) -> dict[str, tuple[Chain, ...]]:
    """Return, for each package, the shortest chain to each fact that asks for it."""
    chains: dict[Fact, Chain] = {fact: (fact,) for fact in facts if fact.subject.name == ROOT}
    waiting = list(chains)
    while waiting:
        last = waiting.pop(0)
        for fact in facts:
            if fact not in chains and fact.follows(last):
                chains[fact] = (*chains[last], fact)
                waiting.append(fact)
    by_package: dict[str, tuple[Chain, ...]] = {}
    for fact, chain in chains.items():
        by_package[fact.wanted] = (*by_package.get(fact.wanted, ()), chain)
    return by_package


def _node(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{canonicalize_name(requirement.name)}{extras}"


def _excluding(chains: Mapping[str, tuple[Chain, ...]], facts: list[Fact], hints: tuple[str, ...]) -> Conflict | None:
    """Return the two shortest chains that ask for versions of one package which no version can both be."""
    pairs = [
        (len(one) + len(other), name, one, other)
        for name, found in chains.items()
        for one, other in itertools.combinations(found, 2)
        if exclude_each_other(one[-1].requirement, other[-1].requirement) and not _are_alternatives(one, other)
    ]
    if not pairs:
        return None
    _, name, one, other = min(pairs, key=lambda pair: pair[:2])
    bounds = " and ".join(str(chain[-1].requirement.specifier) for chain in (one, other))
    verdict = f"no version of {name} is both {bounds}{_others_alike((*one, *other), facts)}"
    return Conflict(chains=(one, other), verdict=verdict, hints=hints)


def _are_alternatives(one: Chain, other: Chain) -> bool:
    """Say whether two chains speak of different versions of one package, of which only one would be installed."""
    return any(
        _node(fact.subject) == _node(its.subject) and fact.subject.specifier != its.subject.specifier
        for fact in one
        for its in other
    )


def _others_alike(chain: Chain, facts: list[Fact]) -> str:
    """Return what is to be added where uv went through more versions of a package than the chains show."""
    shown = {_node(fact.subject): fact.subject for fact in chain}
    more = sorted(
        {
            fact.subject.name
            for fact in facts
            if _node(fact.subject) in shown and fact.subject.specifier != shown[_node(fact.subject)].specifier
        }
    )
    return f"; other versions of {' and '.join(more)} are no way out either" if more else ""


def _unavailable(
    chains: Mapping[str, tuple[Chain, ...]], remarks: list[str], hints: tuple[str, ...]
) -> Conflict | None:
    """Return the chains to the package of which uv says that it, or its version, cannot be had."""
    for remark in remarks:
        named = [name for name in chains if _names(remark, name)]
        if named:
            name = max(named, key=len)
            said = dict.fromkeys(each for each in remarks if _names(each, name))
            ordered = tuple(sorted(chains[name], key=len))
            return Conflict(chains=ordered, verdict="; ".join(said), hints=hints)
    return None


def _names(remark: str, package: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(package)}(?![\w-])", remark) is not None


def exclude_each_other(one: Requirement, other: Requirement) -> bool:
    """Say whether no version fits both requirements: of those that they name and of their nearest neighbours, none."""
    return not any(
        one.specifier.contains(version, prereleases=True) and other.specifier.contains(version, prereleases=True)
        for version in _candidates(f"{one.specifier},{other.specifier}")
    )


def _candidates(specifiers: str) -> Iterator[Version]:
    """Yield the versions at, just below and just above each bound: ranges that meet do so at one of these."""
    yield from (Version("0"), Version("999999"))
    for clause in specifiers.split(","):
        text = clause.strip().lstrip("=<>!~").removesuffix(".*")
        if not text:
            continue
        try:
            version = Version(text)
        except InvalidVersion:
            continue
        yield version
        yield Version(f"{version.public}.post999") if version.post is None else Version(f"{version.public}.1")
        yield Version(f"{version.base_version}.0.1")
        yield Version(f"{version.base_version}.dev0")
        yield from _before(version)


def _before(version: Version) -> Iterator[Version]:
    """Yield a version that is older than this one and newer than all that end before it."""
    release = list(version.release)
    for position in range(len(release) - 1, -1, -1):
        if release[position] > 0:
            lowered = [*release[:position], release[position] - 1, 999999]
            yield Version(".".join(map(str, lowered)))
            return
