"""What is known of recipes: the verdict of each, whether it still holds, and what every check saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rich.console import Group
from rich.table import Table
from rich.text import Text

from builder.document import Document
from builder.errors import StaleLockError
from builder.lock.lockfile import current_lock
from builder.recipe.workspace import workspace_of
from builder.verify.record import read_verdict
from builder.verify.smoke import suite_digest
from builder.verify.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from builder.recipe.source import RecipeFile

COLOURS = {"good": "green", "bad": "red", "passed": "green", "failed": "red", "skipped": "yellow"}


class Status(Document):
    """One recipe: its verdict (None: never proven) and why it does not hold any more (None: it holds)."""

    recipe: str
    path: str
    result: Literal["good", "bad", "unverified", "none"]
    stale: str | None = None
    verdict: Verdict | None = None


def status_of(source: RecipeFile) -> Status:
    """Return what is known of a recipe; reads files only."""
    folder = workspace_of(source)
    verdict = read_verdict(folder.verdict)
    return Status(
        recipe=source.recipe.name,
        path=str(source.path),
        result=verdict.result if verdict else "none",
        stale=_staleness(source, verdict),
        verdict=verdict,
    )


def _staleness(source: RecipeFile, verdict: Verdict | None) -> str | None:
    try:
        lock = current_lock(source, workspace_of(source).lock)
    except StaleLockError as error:
        return error.message
    if verdict is None:
        return None
    if verdict.lock_digest != lock.digest:
        return "the lock has changed since"
    if verdict.suite_digest != suite_digest():
        return "the checks have changed since"
    return None


def status_table(rows: Iterable[Status], *, details: bool) -> RenderableType:
    """Return the rows as a table for people; with `details` also each check with its figures."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("recipe", "verdict", "why"):
        table.add_column(heading, overflow="fold")
    parts: list[RenderableType] = [table]
    for row in rows:
        why = row.verdict.cause if row.verdict else f"not proven yet: envbuild make {row.path}"
        result = f"{row.result}, stale" if row.stale and row.verdict else row.result
        table.add_row(row.recipe, Text(result, style=_colour(row)), why if not row.stale else f"{row.stale} ({why})")
        if details and row.verdict:
            parts.append(_checks(row.verdict))
    return Group(*parts)


def _colour(row: Status) -> str:
    return "yellow" if row.stale else COLOURS.get(row.result, "yellow")


def _checks(verdict: Verdict) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", title=f"\n{verdict.image_id}, {verdict.finished}")
    for heading in ("check", "outcome", "what was seen", "figures"):
        table.add_column(heading, overflow="fold")
    for check in verdict.checks:
        figures = ", ".join(f"{name} {_figure(value)}" for name, value in check.figures.items())
        table.add_row(check.name, Text(check.outcome, style=COLOURS[check.outcome]), check.summary, figures)
    return table


def _figure(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
