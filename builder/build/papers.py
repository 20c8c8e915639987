"""What an image says of its own making: the recipe and the lock, as files in a small layer above all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.build.tarlayer import File
from builder.document import canonical_yaml, key_of, sha256_bytes
from builder.lock.lockfile import LOCK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.lock.model import Lock
    from builder.recipe.model import Recipe

PAPERS = "/usr/share/envbuild"
RECIPE = "recipe.yaml"


def image_papers(recipe: Recipe, lock: Lock) -> tuple[File, ...]:
    """Return the files of the folder `PAPERS`, the same bytes however the recipe is indented or commented."""
    texts = {
        RECIPE: canonical_yaml(recipe.to_plain()),
        LOCK: canonical_yaml(lock.file.to_plain()),
        **lock.pylocks,
    }
    return tuple(File(path=f"{PAPERS}/{name}", size=len(text), content=text) for name, text in sorted(texts.items()))


def papers_key(papers: Iterable[File]) -> str:
    """Return the key of papers: their paths and bytes."""
    return key_of([[paper.path, sha256_bytes(paper.content)] for paper in papers if isinstance(paper.content, bytes)])
