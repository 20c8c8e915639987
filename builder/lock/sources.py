"""The sources of what is compiled: fetched ones locked and restored, and what each of all declares of itself."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builder.errors import ResolveError
from builder.lock.archive import read_texts
from builder.lock.gitsource import archive_git, locked_git
from builder.lock.model import LockedGit, LockedSdist
from builder.lock.project import DEFAULT_BUILD_REQUIREMENTS, Project, local_projects, named, source_project
from builder.lock.sdist import archive_sdist, locked_sdist
from builder.lock.wheels import fetch_wheels
from builder.lock.wish import wishes_of
from builder.recipe.model import BuildSettings
from builder.recipe.packages import known_package

if TYPE_CHECKING:
    from pathlib import Path

    from builder.lock.model import Lock
    from builder.lock.wish import Wish
    from builder.recipe.model import Package, Recipe
    from builder.recipe.source import RecipeFile
    from builder.settings import Settings
    from builder.store import Store

Source = LockedSdist | LockedGit


def locked_source(wish: Wish) -> Source:
    """Return the locked source of a package that is fetched, its archive in the store.

    Raise ResolveError where a source cannot be had, a patch does not fit, or a fix is not in the source.
    """
    return locked_git(wish) if wish.package.git else locked_sdist(wish)


def restore_source(source: Source, wish: Wish) -> Path:
    """Return the canonical archive of a locked source, made again from index or git if the store has lost it.

    Raise ResolveError if what can be had today is not what is locked.
    """
    if not wish.store.has(source.archive):
        made = _archived_again(source, wish)
        if made != source.archive:
            raise ResolveError(
                f"{wish.place}: the source is not the locked one: its archive is {made}, locked is {source.archive}",
                remedy="restore the patches from version control, or run `envbuild lock RECIPE`",
            )
    return wish.store.sound(source.archive)


def _archived_again(source: Source, wish: Wish) -> str:
    if isinstance(source, LockedGit):
        return archive_git(wish)
    fetch_wheels((source,), wish.store, wish.settings, indexes=wish.recipe.indexes)
    return archive_sdist(wish, source.sha256, source.filename)


def source_declarations(source: Source, wish: Wish) -> Project:
    """Return what a locked source declares; no code of it is run."""
    archive, folder = wish.store.sound(source.archive), PurePosixPath(source.subdirectory)
    settings = wish.package.build or BuildSettings()
    pyproject, pkg_info = read_texts(archive, folder / "pyproject.toml", folder / "PKG-INFO")
    project = source_project(
        wish.project,
        wish.place,
        pyproject=pyproject,
        pkg_info=pkg_info,
        said=settings.dependencies,
        known=known_package(wish.name).dependencies,
    )
    return named(wish.name, project, wish.place)


def guessed_projects(recipe: Recipe) -> dict[str, Project]:
    """Return what fetched sources probably declare, for those of which the recipe or our own data knows it.

    Good for beginning a question before the sources are here; the answer counts if they turn out to say the same.
    """
    return {
        name: Project(
            name=canonicalize_name(name),
            dependencies=dependencies,
            extras={},
            build_requirements=DEFAULT_BUILD_REQUIREMENTS,
        )
        for name, package in recipe.stack.items()
        if package.from_source and package.path is None and not package.extras
        if (dependencies := _known_dependencies(name, package)) is not None
    }


def _known_dependencies(name: str, package: Package) -> tuple[str, ...] | None:
    said = package.build.dependencies if package.build else None
    return known_package(name).dependencies if said is None else said


def declared_projects(source: RecipeFile, lock: Lock, store: Store, settings: Settings) -> dict[str, Project]:
    """Return what every compiled package of a locked recipe declares, by its name in the stack.

    A locked source that the store has lost is fetched again.
    """
    found = local_projects(source)
    for wish in wishes_of(source, store, settings):
        locked = lock.sources[wish.project]
        restore_source(locked, wish)
        found[wish.name] = source_declarations(locked, wish)
    return found
