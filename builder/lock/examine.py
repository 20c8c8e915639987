"""Preflight of a recipe together with its lock, where it has a current one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import StaleLockError
from builder.lock.lockfile import current_lock
from builder.lock.question import question_of
from builder.preflight.pins import lock_facts
from builder.preflight.stage import check_recipe
from builder.recipe.workspace import refuse_namesake, workspace_of

if TYPE_CHECKING:
    from builder.console import Console
    from builder.lock.model import Lock
    from builder.preflight.findings import Finding
    from builder.preflight.pins import LockFacts
    from builder.recipe.source import RecipeFile


def examine_recipe(source: RecipeFile, console: Console) -> tuple[Finding, ...]:
    """Apply the rules of preflight to a recipe, and to its lock where it has a current one; refuse with exit 4.

    Raise what `lock` would say of the folders and patches that the recipe names beside itself, and of a namesake.
    """
    refuse_namesake(source)
    question_of(source)
    try:
        lock = current_lock(source, workspace_of(source).lock)
    except StaleLockError:
        return check_recipe(source, console)
    return check_recipe(source, console, lock=facts_of(lock))


def facts_of(lock: Lock) -> LockFacts:
    """Return what preflight reads of a lock."""
    debian = {deb.name: deb.version for deb in (*lock.base_debs, *lock.toolchain_debs)}
    return lock_facts(lock.wheels, lock.file.base.packages if lock.file.base else debian)
