"""An explanation as people read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.sizes import shown_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.explain.model import Explanation, Explanations, Want


def explanation_lines(explanations: Explanations) -> Iterator[str]:
    """Yield the lines: for each part of the lock the package, where it comes from, and who wants it."""
    for number, part in enumerate(explanations.parts):
        if number:
            yield ""
        yield from _part(part)


def _part(part: Explanation) -> Iterator[str]:
    size = "" if part.bytes is None else f", {shown_bytes(part.bytes)}"
    yield f"{part.name} {part.version or '(local source)'}, {part.world} in the {part.part}{size}"
    yield f"  from {part.origin}" if not part.origin.startswith("built") else f"  {part.origin}"
    if part.remark:
        yield f"  {part.remark}"
    for want in part.wants:
        yield f"  {_want(want)}"
        if want.overruled:
            yield f"    overruled by {want.overruled}"


def _want(want: Want) -> str:
    head, *rest = want.chain
    links = [f"{head.owner}: {head.requirement}", *(f"{link.owner} needs {link.requirement}" for link in rest)]
    return " -> ".join(links)
