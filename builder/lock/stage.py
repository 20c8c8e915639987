"""Recipe -> lock, as one stretch of the road."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from builder.document import key_of
from builder.errors import InvalidDocumentError, StaleLockError
from builder.lock.changes import changes_between
from builder.lock.lockfile import LOCK, current_lock, read_lock
from builder.lock.question import changed_fields, question_of
from builder.lock.resolve import NOTHING, resolve_lock
from builder.lock.update import check_update
from builder.lock.writing import refuse_unwritable, write_lock
from builder.recipe.workspace import refuse_namesake, workspace_of
from builder.store import mended

if TYPE_CHECKING:
    from builder.console import Console
    from builder.lock.model import Lock
    from builder.lock.update import Update
    from builder.recipe.source import RecipeFile
    from builder.tools import Tools


def lock_recipe(source: RecipeFile, tools: Tools, *, update: Update = NOTHING) -> Lock:
    """Return the lock of a recipe, resolved if there is none, if it answers another question, or if `update` asks.

    Shows what changed. Raise UsageError for a name in `update` that the lock does not have, StaleLockError where there
    is no lock to update.
    """
    refuse_namesake(source)
    with tools.store.exclusive(f"lock-{key_of(str(workspace_of(source).lock))}"):
        return _lock_recipe(source, tools, update)


def _lock_recipe(source: RecipeFile, tools: Tools, update: Update) -> Lock:
    previous = _previous(source, tools.console, update)
    changed = changed_fields(previous.file.question, question_of(source)) if previous else ("no lock yet",)
    if previous is not None and not changed and not update.asked:
        tools.console.current("lock")
        return previous
    refuse_unwritable(workspace_of(source).lock)
    tools.console.say(f"  lock: {', '.join(changed or ('asked to update',))}")
    with tools.console.step("resolve the base and the wheels") as step:
        resolve = partial(resolve_lock, source, previous, tools.store, tools.settings, update)
        files = mended(tools.store, resolve, tools.console.warn)
        write_lock(workspace_of(source).lock, files)
        locked = locked_recipe(source)
        step.end(f"{_base_words(locked)}, {len(locked.wheels)} wheels")
    if previous is not None:
        _show_changes(previous, locked, tools.console)
    return locked


def _base_words(lock: Lock) -> str:
    return lock.file.base.reference[:-52] if lock.file.base else f"{len(lock.base_debs)} Debian packages"


def locked_recipe(source: RecipeFile) -> Lock:
    """Return the lock of a recipe; raise StaleLockError if there is none or if it answers another question."""
    return current_lock(source, workspace_of(source).lock)


def previous_lock(source: RecipeFile) -> Lock | None:
    """Return the lock that a recipe has, whatever it answers; None where there is none, or only a damaged one."""
    try:
        return read_lock(workspace_of(source).lock, source.recipe.name)
    except InvalidDocumentError:
        return None


def _previous(source: RecipeFile, console: Console, update: Update) -> Lock | None:
    """Return the lock to start from; a damaged one counts for nothing, unless a part of it shall be kept."""
    if update.names:
        lock = read_lock(workspace_of(source).lock, source.recipe.name)
        if lock is None:
            raise StaleLockError(f"{source.path}: there is no lock to update", remedy="lock it first, without --update")
        for remark in check_update(update, lock, source):
            console.warn(remark)
        return lock
    lock = previous_lock(source)
    if lock is None and (workspace_of(source).lock / LOCK).exists():
        console.warn(f"the lock in {workspace_of(source).lock} is damaged: it is made anew")
    return lock


def _show_changes(before: Lock, after: Lock, console: Console) -> None:
    changes = changes_between(before, after)
    for change in changes:
        console.say(f"    {change.line}")
    if not changes:
        console.say("    no package changed")
