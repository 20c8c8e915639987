"""What is known of recipes: the verdict of each, whether it still holds, and what every check saw."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from rich.console import Group
from rich.table import Table
from rich.text import Text

from builder.document import Document
from builder.errors import EnvbuildError, StaleLockError
from builder.lock.lockfile import current_lock
from builder.recipe.source import read_recipe
from builder.recipe.workspace import workspace_of
from builder.verify.grounds import changes_since, grounds_of
from builder.verify.record import read_verdict
from builder.verify.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rich.console import RenderableType

    from builder.lock.model import Lock
    from builder.recipe.source import RecipeFile
    from builder.store import Store

COLOURS = {"good": "green", "bad": "red", "passed": "green", "failed": "red", "skipped": "yellow"}


class Status(Document):
    """One recipe: its verdict (None: never proven) and why it does not hold any more (None: it holds)."""

    recipe: str
    path: str
    result: Literal["good", "bad", "unverified", "none", "invalid"]
    stale: str | None = None
    verdict: Verdict | None = None


def statuses_of(paths: Iterable[Path], store: Store, target: str | None = None) -> tuple[Status, ...]:
    """Return what is known of recipes, only of those for a GPU where `target` names one.

    A recipe, lock or verdict that cannot be read is a row of its own and hides no other.
    """
    rows = []
    for path in paths:
        try:
            source = read_recipe(path)
            if target in {None, source.recipe.target.gpu}:
                rows.append(status_of(source, store))
        except (EnvbuildError, OSError) as error:
            sentence = error.message if isinstance(error, EnvbuildError) else str(error)
            rows.append(Status(recipe=path.stem, path=str(path), result="invalid", stale=sentence))
    return tuple(rows)


def status_of(source: RecipeFile, store: Store) -> Status:
    """Return what is known of a recipe; reads files and the store only."""
    folder = workspace_of(source)
    verdict = read_verdict(folder.verdict)
    return Status(
        recipe=source.recipe.name,
        path=str(source.path),
        result=verdict.result if verdict else "none",
        stale=_staleness(source, verdict, store),
        verdict=verdict,
    )


def _staleness(source: RecipeFile, verdict: Verdict | None, store: Store) -> str | None:
    try:
        lock = current_lock(source, workspace_of(source).lock)
    except StaleLockError as error:
        return error.message
    if verdict is None:
        return None
    now = grounds_of(source, lock)
    reasons = [*changes_since(verdict, now)]
    if not reasons:
        reasons += changes_since(verdict, replace(now, image_id=_known_image_id(source, lock, store)))
    return "; ".join(reasons) or None


def _known_image_id(source: RecipeFile, lock: Lock, store: Store) -> str | None:
    from builder.build.stage import known_image_id  # noqa: PLC0415 - slow to import, and a stale row needs it not

    return known_image_id(source, lock, store)


def status_table(rows: Iterable[Status], *, details: bool) -> RenderableType:
    """Return the rows as a table for people; with `details` also each check with its figures."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("recipe", "verdict", "why"):
        table.add_column(heading, overflow="fold")
    parts: list[RenderableType] = [table]
    for row in rows:
        if row.result == "invalid":
            table.add_row(row.recipe, Text(row.result, style="red"), row.stale)
            continue
        why = row.verdict.cause if row.verdict else f"not proven yet: envbuild make {row.path}"
        result = f"{row.result}, stale" if row.stale and row.verdict else row.result
        table.add_row(row.recipe, Text(result, style=_colour(row)), why if not row.stale else f"{row.stale} ({why})")
        if details and row.verdict:
            parts.append(_checks(row.verdict))
    return Group(*parts)


def _colour(row: Status) -> str:
    return "yellow" if row.stale else COLOURS.get(row.result, "yellow")


def _checks(verdict: Verdict) -> Table:
    made = f"\n{verdict.image_id}, {verdict.finished}"
    table = Table(box=None, pad_edge=False, header_style="dim", title=made, title_justify="left")
    for heading in ("check", "outcome", "what was seen", "figures"):
        table.add_column(heading, overflow="fold")
    for check in verdict.checks:
        figures = ", ".join(f"{name} {_figure(value)}" for name, value in check.figures.items())
        table.add_row(check.name, Text(check.outcome, style=COLOURS[check.outcome]), check.summary, figures)
    return table


def _figure(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
