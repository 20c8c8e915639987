"""A package from git: the commit's files with its submodules and patches, and the fixes that they must show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import InvalidDocumentError
from builder.lock.fixes import proven_fixes
from builder.lock.git import export_commit, fetch_commit
from builder.lock.model import LockedGit

if TYPE_CHECKING:
    from builder.lock.git import Checkout
    from builder.lock.wish import Wish


def locked_git(wish: Wish) -> LockedGit:
    """Return the git source of a package, its canonical archive in the store.

    Raise ResolveError where the commit cannot be had, a patch does not fit, or a fix is not in the source.
    """
    checkout = _checkout(wish)
    export = export_commit(checkout, wish.store, wish.settings)
    tree = wish.patched(export.files)
    subdirectory = wish.package.subdirectory or "."
    if subdirectory != "." and not any(name.startswith(f"{subdirectory.rstrip('/')}/") for name in tree):
        raise InvalidDocumentError(
            f"{wish.place_of('subdirectory')}: {checkout.commit} has no folder {subdirectory}",
            remedy="give the folder with the package's pyproject.toml or setup.py, from the repository's root",
        )
    return LockedGit(
        name=wish.project,
        url=checkout.url,
        commit=checkout.commit,
        tree=checkout.tree,
        subdirectory=subdirectory,
        submodules=export.submodules,
        patches=wish.patches,
        fixes=proven_fixes(wish, tree, checkout),
        archive=wish.keep(tree),
    )


def archive_git(wish: Wish) -> str:
    """Make the canonical archive of a git source again and return its sha256."""
    return wish.keep(wish.patched(export_commit(_checkout(wish), wish.store, wish.settings).files))


def _checkout(wish: Wish) -> Checkout:
    package = wish.package
    history = any(fix.commit for fix in package.fixes)
    return fetch_commit(
        str(package.git), str(package.commit), wish.store, wish.settings, place=wish.place_of("git"), history=history
    )
