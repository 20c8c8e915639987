"""What a shell may complete: the recipes of the project, the ids of GPUs, the packages of a recipe's lock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

from builder.errors import EnvbuildError

if TYPE_CHECKING:
    import click


def complete_recipes(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the recipes below `recipes/` that begin with what is typed, else leave it to the shell's own files."""
    known = sorted(path.as_posix() for path in Path("recipes").rglob("*.yaml"))
    found = [CompletionItem(path) for path in known if path.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def complete_targets(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the ids of the known GPUs that begin with what is typed, each with its product name."""
    from builder.recipe.targets import targets

    return [
        CompletionItem(target.id, help=f"{target.product}, {target.capability}")
        for target in targets().values()
        if target.id.startswith(incomplete)
    ]


def complete_packages(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the packages of the lock of the recipe that stands before on the line; nothing where there is none."""
    from builder.lock.changes import packages_of
    from builder.lock.lockfile import read_lock
    from builder.recipe.source import read_recipe
    from builder.recipe.workspace import workspace_of

    # Before the value of an option click has parsed no argument yet: it leaves them in `args`.
    recipe = context.params.get("recipe") or next(iter(context.args), None)
    try:
        source = read_recipe(Path(recipe or ""))
        lock = read_lock(workspace_of(source).lock, source.recipe.name)
    except EnvbuildError:
        return []
    names = {package.name for package in packages_of(lock) if package.world == "python"} if lock else set()
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
