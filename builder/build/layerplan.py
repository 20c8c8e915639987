"""Wheels -> which layers an environment has, from the bottom: a pure function of the wheels."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from builder.build.tarlayer import File
    from builder.build.wheelfile import WheelLayout

LARGE = 5_000_000
BUCKETS = 8
MOST_OWN = 100
"""With the base, the environment, the buckets and the papers this is below the 125 layers that overlayfs can stack."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPlan:
    """A layer to make, named as in the image's history: of wheels, of papers, or (neither) the environment itself."""

    title: str
    layouts: tuple[WheelLayout, ...] = ()
    papers: tuple[File, ...] = ()


def plan_layers(
    layouts: Iterable[WheelLayout], papers: tuple[File, ...] = (), stack: Collection[str] = ()
) -> tuple[LayerPlan, ...]:
    """Return the layers from the bottom: the environment, layers of one wheel, buckets of wheels, the image's papers.

    A wheel that is large or that the recipe pins (`stack`) has a layer of its own. An engine extracts anew whatever
    lies above a changed layer, so what the recipe pins lies above all other wheels, the largest first, and the papers,
    which change with every lock, come last. Of the other large wheels those without Python files come first, and the
    smallest of them: they need no byte code, and the engine begins as soon as it has one whole layer. A small wheel's
    bucket follows from its name alone, so another package does not move it.
    """
    ordered = sorted(layouts, key=lambda layout: (-layout.size, layout.wheel.name))
    alone = [layout for layout in ordered if layout.size >= LARGE or layout.wheel.name in stack][:MOST_OWN]
    pinned = [layout for layout in alone if layout.wheel.name in stack]
    large = sorted((layout for layout in alone if layout.wheel.name not in stack), key=_turn)
    names = {layout.wheel.filename for layout in alone}
    buckets: dict[int, list[WheelLayout]] = {}
    for layout in ordered:
        if layout.wheel.filename not in names:
            buckets.setdefault(_bucket(layout.wheel.name), []).append(layout)
    return (
        LayerPlan(title="environment"),
        *(_plan([layout]) for layout in large),
        *(_plan(buckets[number]) for number in sorted(buckets)),
        *(_plan([layout]) for layout in pinned),
        *([LayerPlan(title="recipe and lock", papers=papers)] if papers else []),
    )


def _turn(layout: WheelLayout) -> tuple[bool, int]:
    python = any(file.path.endswith(".py") for file in layout.files)
    return python, -layout.size if python else layout.size


def _bucket(name: str) -> int:
    return int.from_bytes(hashlib.sha256(canonicalize_name(name).encode()).digest()[:4]) % BUCKETS


def _plan(layouts: list[WheelLayout]) -> LayerPlan:
    ordered = sorted(layouts, key=lambda layout: layout.wheel.name)
    title = ", ".join(f"{layout.wheel.name} {layout.wheel.version}" for layout in ordered)
    return LayerPlan(title=title, layouts=tuple(ordered))
