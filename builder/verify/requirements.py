"""The check `static.requirements`: what the installed packages ask of each other holds, but for declared overrides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.verify.static_report import first_of, shortened
from builder.verify.verdict import Check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.verify.static_report import SeenDistribution, StaticReport

# Packages of one source that refuse each other in different versions (FlashInfer's own check; vLLM #49804).
SAME_VERSION = (("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache"),)


@dataclass(frozen=True, kw_only=True, slots=True)
class Conflict:
    """A requirement that the installed version does not meet; `found` is None if the package is not installed."""

    by: str
    requirement: Requirement
    found: str | None

    @property
    def name(self) -> str:
        """The package that is asked for, its name in normal form."""
        return canonicalize_name(self.requirement.name)

    @property
    def sentence(self) -> str:
        """The conflict in words."""
        return f"{self.by} requires {self.requirement}, {self.found or 'nothing of it'} is installed"


def requirements_check(report: StaticReport, overrides: Sequence[str]) -> Check:
    """Find what `pip check` finds and compare it with the packages whose requirements the recipe overrules."""
    declared = {canonicalize_name(name) for name in overrides}
    conflicts = list(_conflicts(report))
    problems = [
        f"{conflict.sentence}, and the recipe has no override for it"
        for conflict in conflicts
        if conflict.name not in declared
    ]
    problems += _uneven(report.distributions)
    overruled = [conflict for conflict in conflicts if conflict.name in declared]
    idle = sorted(declared - {conflict.name for conflict in overruled})
    return Check(
        name="static.requirements",
        level="static",
        outcome="failed" if problems else "passed",
        summary=first_of(problems) or f"what the packages ask of each other holds{_but_for(overruled)}",
        figures={"conflicts": len(conflicts), "overruled": len(overruled), "problems": len(problems)},
        evidence=shortened(
            [
                *problems,
                *(f"overruled by the recipe: {conflict.sentence}" for conflict in overruled),
                *(f"notice: the override of {name} overrules nothing" for name in idle),
            ]
        ),
    )


def _but_for(overruled: Sequence[Conflict]) -> str:
    return f", but for {len(overruled)} that the recipe overrules" if overruled else ""


def _conflicts(report: StaticReport) -> Iterator[Conflict]:
    versions = {one.name: one.version for one in report.distributions}
    for other in report.others:
        name, _, version = other.rpartition(" ")
        versions.setdefault(name, version)
    for one in report.distributions:
        for requirement in _requirements(one, report.markers):
            found = versions.get(canonicalize_name(requirement.name))
            if found is None or not requirement.specifier.contains(found, prereleases=True):
                yield Conflict(by=f"{one.name} {one.version}", requirement=requirement, found=found)


def _requirements(one: SeenDistribution, markers: dict[str, str]) -> Iterator[Requirement]:
    for text in one.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # metadata from before PEP 508; pip leaves it out, too
        if requirement.marker is None or requirement.marker.evaluate({**markers, "extra": ""}):
            yield requirement


def _uneven(distributions: Sequence[SeenDistribution]) -> list[str]:
    versions = {one.name: one.version for one in distributions}
    problems = []
    for family in SAME_VERSION:
        seen = {name: versions[name].partition("+")[0] for name in family if name in versions}
        if len(set(seen.values())) > 1:
            texts = ", ".join(f"{name} {version}" for name, version in seen.items())
            problems.append(f"{texts}: these must be of one version")
    return problems
