"""What a shell may complete: recipes, GPUs, packages of a lock, cells of a matrix, classes of failures."""

from __future__ import annotations

import contextlib
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


def complete_sides(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return what a bisection may be asked of: recipes, and after one of them its packages that are built from git."""
    from builder.recipe.source import read_recipe

    given = [*(context.params.get("what") or ()), *context.args]
    packages: list[str] = []
    if len(given) == 1:
        with contextlib.suppress(EnvbuildError):
            stack = read_recipe(Path(given[0])).recipe.stack
            packages = [name for name, package in stack.items() if package.git and name.startswith(incomplete)]
    return [*map(CompletionItem, packages)] if packages else complete_recipes(context, parameter, incomplete)


def complete_cells(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the cells of the matrix that stands before on the line, else of `matrix.yaml`, that are run."""
    from builder.matrix.cells import cells_of
    from builder.matrix.grid import read_matrix

    # As above: what stands in `args` is not parsed yet, and in `params` is only the default.
    file = next(iter(context.args), None) or context.params.get("file") or "matrix.yaml"
    try:
        cells = cells_of(read_matrix(Path(file)))
    except EnvbuildError:
        return []
    return [CompletionItem(cell.name) for cell in cells if cell.to_run and cell.name.startswith(incomplete)]


def complete_classes(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the classes of failures that diagnosis knows, each with its title."""
    from builder.diagnose.knowledge import knowledge_with

    classes = knowledge_with(None).classes
    return [CompletionItem(name, help=about.title) for name, about in classes.items() if name.startswith(incomplete)]
