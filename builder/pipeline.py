"""The road: recipe -> findings -> lock -> Dockerfiles -> wheels -> image -> verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.build.stage import build_recipe, render_recipe
from builder.errors import StaleLockError
from builder.lock.stage import lock_recipe, locked_recipe
from builder.preflight.pins import lock_facts
from builder.preflight.stage import check_recipe
from builder.verify.stage import smoke_recipe

if TYPE_CHECKING:
    from builder.console import Console
    from builder.lock.model import Lock
    from builder.preflight.findings import Finding
    from builder.preflight.pins import LockFacts
    from builder.recipe.source import RecipeFile
    from builder.tools import Tools
    from builder.verify.verdict import Verdict


def make(source: RecipeFile, tools: Tools, *, frozen: bool = False) -> Verdict:
    """Go the whole road and return the verdict. With `frozen` a stale lock is an error, not resolved again."""
    tools.console.heading(f"{source.recipe.name}: {source.recipe.description}")
    wished = check_recipe(source, tools.console)
    lock = locked_recipe(source) if frozen else lock_recipe(source, tools)
    findings = check_recipe(source, tools.console, lock=facts_of(lock), known=wished)
    render_recipe(source, lock, tools.console)
    image = build_recipe(source, lock, tools)
    verdict = smoke_recipe(source, lock, image, tools, findings=findings)
    tools.console.verdict(verdict.result, verdict.cause)
    return verdict


def check(source: RecipeFile, console: Console) -> tuple[Finding, ...]:
    """Apply the rules of preflight to a recipe, and to its lock where it has a current one."""
    try:
        lock = locked_recipe(source)
    except StaleLockError:
        return check_recipe(source, console)
    return check_recipe(source, console, lock=facts_of(lock))


def facts_of(lock: Lock) -> LockFacts:
    """Return what preflight reads of a lock."""
    debian = lock.file.debian
    return lock_facts(lock.wheels, {deb.name: deb.version for deb in (*debian.base, *debian.toolchain)})
