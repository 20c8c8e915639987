"""The answer to `who wants this package?`, as frozen values."""

from __future__ import annotations

from builder.document import Document
from builder.lock.changes import Part, World


class Link(Document):
    """One requirement: who has it (a place of the recipe, or a package with its version), and what it says."""

    owner: str
    requirement: str


class Want(Document):
    """One package or place of the recipe that wants the explained one: `chain` leads to it from the recipe.

    The last link is the requirement itself; `overruled` says why the locked version does not have to fit it.
    """

    chain: tuple[Link, ...]
    overruled: str | None = None


class Explanation(Document):
    """Everything that is known of one package in one part of a lock.

    `version` is None for a local source, which has none before it is built; `bytes` are of the file that is fetched;
    `origin` says where it comes from. Wants are sorted: the shortest chain first.
    """

    world: World
    part: Part
    name: str
    version: str | None
    bytes: int | None
    origin: str
    wants: tuple[Want, ...]
    remark: str | None = None


class Explanations(Document):
    """One package of a recipe, once for each part of the lock that has it."""

    recipe: str
    package: str
    parts: tuple[Explanation, ...]
