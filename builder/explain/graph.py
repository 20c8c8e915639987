"""Requirements as a graph: the shortest chain from what asks first to everyone who wants a package."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

N = TypeVar("N")
"""A node: a package, or a package with one of its extras."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge(Generic[N]):
    """A requirement: `owner` is a node, or None for what asks first; `leads_to` are the nodes that answer it."""

    owner: N | None
    label: str
    text: str
    leads_to: tuple[N, ...]


def chains_to(
    wanted: Callable[[N], bool], first: Iterable[Edge[N]], edges_of: Callable[[N], Iterable[Edge[N]]]
) -> tuple[tuple[Edge[N], ...], ...]:
    """Return, for every edge that leads to a wanted node, the shortest chain that ends with it, shortest first.

    A chain goes through no wanted node on its way. `edges_of` gives what a node requires.
    """
    found: dict[tuple[str, str], tuple[Edge[N], ...]] = {}
    waiting: deque[tuple[Edge[N], ...]] = deque((edge,) for edge in first)
    seen: set[N] = set()
    while waiting:
        chain = waiting.popleft()
        last = chain[-1]
        if any(wanted(node) for node in last.leads_to):
            found.setdefault((last.label, last.text), chain)
            continue
        for node in last.leads_to:
            if node not in seen:
                seen.add(node)
                waiting.extend((*chain, edge) for edge in edges_of(node))
    return tuple(sorted(found.values(), key=lambda chain: (len(chain), chain[-1].label)))
