"""The changes that a recipe wants a fetched source to have: each proven by the patched files or by the history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import ResolveError
from builder.lock.model import ProvenFix

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.lock.git import Checkout
    from builder.lock.tree import SourceFile
    from builder.lock.wish import Wish
    from builder.recipe.model import Fix


def proven_fixes(wish: Wish, tree: Mapping[str, SourceFile], checkout: Checkout | None = None) -> tuple[ProvenFix, ...]:
    """Return how the patched tree, or the history of a checkout, shows each fix; raise ResolveError if neither does."""
    return tuple(_proven(fix, tree, checkout, wish.place_of("fixes")) for fix in wish.package.fixes)


def _proven(fix: Fix, tree: Mapping[str, SourceFile], checkout: Checkout | None, place: str) -> ProvenFix:
    if fix.file and fix.contains and fix.contains in _text(tree, fix.file):
        return ProvenFix(id=fix.id, proof=f"{fix.file} contains {fix.contains!r}")
    if fix.commit and checkout and checkout.has_ancestor(fix.commit):
        return ProvenFix(id=fix.id, proof=f"{fix.commit} is in the history")
    tried = [f"{fix.file} does not contain {fix.contains!r}"] if fix.file else []
    tried += [f"{fix.commit} is not in the history of {checkout.commit}"] if fix.commit and checkout else []
    raise ResolveError(
        f"{place}: the source does not have {fix.id}: {' and '.join(tried)}",
        remedy=f"take a {'commit' if checkout else 'version'} that has it, or bring it in `patches`",
    )


def _text(tree: Mapping[str, SourceFile], name: str) -> str:
    return tree[name].data.decode(errors="replace") if name in tree else ""
