"""Recipe -> findings, as one stretch of the road: shown, and refused where an error is not waived."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.preflight.examine import preflight
from builder.preflight.findings import refuse

if TYPE_CHECKING:
    from builder.console import Console
    from builder.preflight.findings import Finding
    from builder.preflight.host import HostFacts
    from builder.preflight.pins import LockFacts
    from builder.recipe.source import RecipeFile


def check_recipe(
    source: RecipeFile,
    console: Console,
    *,
    lock: LockFacts | None = None,
    host: HostFacts | None = None,
    known: tuple[Finding, ...] = (),
) -> tuple[Finding, ...]:
    """Apply the rules to a recipe and what else is known; show what is not `known` yet; refuse with exit 4."""
    findings = preflight(source.recipe, lock, host, places=source.places)
    shown = {finding.rule for finding in known}
    for finding in findings:
        if finding.rule not in shown and not finding.refuses:
            _show(finding, str(source.path), console)
    refuse(findings, str(source.path))
    return findings


def _show(finding: Finding, source: str, console: Console) -> None:
    if finding.severity == "notice" or finding.waived is not None:
        console.say(f"  {finding.headline(source)}")
    else:
        console.warn(finding.headline(source))
    if finding.remedy and finding.severity == "warning" and finding.waived is None:
        console.say(f"    → {finding.remedy}")
