"""A package from git: the commit's files with its submodules and patches, and the fixes that they must show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import InvalidDocumentError, ResolveError
from builder.lock.git import export_commit, fetch_commit
from builder.lock.model import LockedGit, ProvenFix

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.lock.git import Checkout
    from builder.lock.tree import SourceFile
    from builder.lock.wish import Wish
    from builder.recipe.model import Fix


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
            f"{wish.place}.subdirectory: {checkout.commit} has no folder {subdirectory}",
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
        fixes=tuple(_proven(fix, tree, checkout) for fix in wish.package.fixes),
        archive=wish.keep(tree),
    )


def archive_git(wish: Wish) -> str:
    """Make the canonical archive of a git source again and return its sha256."""
    return wish.keep(wish.patched(export_commit(_checkout(wish), wish.store, wish.settings).files))


def _checkout(wish: Wish) -> Checkout:
    package = wish.package
    history = any(fix.commit for fix in package.fixes)
    return fetch_commit(
        str(package.git), str(package.commit), wish.store, wish.settings, place=wish.place, history=history
    )


def _proven(fix: Fix, tree: Mapping[str, SourceFile], checkout: Checkout) -> ProvenFix:
    """Return how the patched tree or the commit's history shows a fix; raise ResolveError if neither does."""
    if fix.file and fix.contains and fix.contains in _text(tree, fix.file):
        return ProvenFix(id=fix.id, proof=f"{fix.file} contains {fix.contains!r}")
    if fix.commit and checkout.has_ancestor(fix.commit):
        return ProvenFix(id=fix.id, proof=f"{fix.commit} is in the history")
    tried = [f"{fix.file} does not contain {fix.contains!r}"] if fix.file else []
    tried += [f"{fix.commit} is not in the history of {checkout.commit}"] if fix.commit else []
    raise ResolveError(
        f"{checkout.place}.fixes: the source does not have {fix.id}: {' and '.join(tried)}",
        remedy="take a commit that has it, or bring it in `patches`",
    )


def _text(tree: Mapping[str, SourceFile], name: str) -> str:
    return tree[name].data.decode(errors="replace") if name in tree else ""
