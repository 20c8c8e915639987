"""Recipe -> lock, as one stretch of the road."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.lock.lockfile import changed_fields, current_lock, question_of, read_lock, resolve_lock, write_lock
from builder.recipe.workspace import workspace_of

if TYPE_CHECKING:
    from builder.lock.model import Lock
    from builder.recipe.source import RecipeFile
    from builder.tools import Tools


def lock_recipe(source: RecipeFile, tools: Tools) -> Lock:
    """Return the lock of a recipe, resolved if there is none or if it answers another question."""
    folder = workspace_of(source).lock
    previous = read_lock(folder, source.recipe.name)
    changed = changed_fields(previous.file.question, question_of(source)) if previous else ("no lock yet",)
    if previous is not None and not changed:
        tools.console.current("lock")
        return previous
    tools.console.say(f"  lock: {', '.join(changed)}")
    with tools.console.step("resolve Debian packages and wheels") as step:
        files = resolve_lock(source, previous, tools.store, tools.settings)
        write_lock(folder, files)
        locked = locked_recipe(source)
        step.end(f"{len(locked.file.debian.base)} Debian packages, {len(locked.wheels)} wheels")
    return locked


def locked_recipe(source: RecipeFile) -> Lock:
    """Return the lock of a recipe; raise StaleLockError if there is none or if it answers another question."""
    return current_lock(source, workspace_of(source).lock)
