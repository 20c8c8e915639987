"""Wheels -> which layers an environment has, from the bottom: a pure function of the wheels."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builder.build.hostile import folders_above
from builder.build.wheelfile import record_hash
from builder.errors import BuildFailedError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from builder.build.tarlayer import File
    from builder.build.wheelfile import WheelLayout

LARGE = 5_000_000
BUCKETS = 16
MOST_LARGE = 100
"""With the base, the environment and the buckets this stays below the 125 layers that overlayfs can stack."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPlan:
    """A layer to make, named as in the image's history: of wheels, of papers, or (neither) the environment itself."""

    title: str
    layouts: tuple[WheelLayout, ...] = ()
    papers: tuple[File, ...] = ()


def plan_layers(
    layouts: Iterable[WheelLayout], papers: tuple[File, ...] = (), stack: Collection[str] = ()
) -> tuple[LayerPlan, ...]:
    """Return the layers from the bottom: the environment, each large wheel, buckets of small ones, the image's papers.

    An engine extracts anew whatever lies above a changed layer, so what seldom changes and is large comes first: the
    packages that a recipe does not name, then those that it pins (`stack`), each the largest first; the papers, which
    change with every lock, come last. But of both, those without Python files come first, and the smallest of them:
    they need no byte code, and the engine begins as soon as it has one whole layer. A small wheel's bucket follows from
    its name alone, so another package does not move it. Raises BuildFailedError if two wheels want to own one path with
    different bytes.
    """
    ordered = sorted(layouts, key=lambda layout: (-layout.size, layout.wheel.name))
    _check_owners(ordered)
    large = [layout for layout in ordered[:MOST_LARGE] if layout.size >= LARGE]
    placed = sorted(large, key=lambda layout: (layout.wheel.name in stack, *_turn(layout)))
    buckets: dict[int, list[WheelLayout]] = {}
    for layout in ordered[len(large) :]:
        buckets.setdefault(_bucket(layout.wheel.name), []).append(layout)
    return (
        LayerPlan(title="environment"),
        *(LayerPlan(title=f"{layout.wheel.name} {layout.wheel.version}", layouts=(layout,)) for layout in placed),
        *(_bucket_plan(buckets[number]) for number in sorted(buckets)),
        *([LayerPlan(title="recipe and lock", papers=papers)] if papers else []),
    )


def _turn(layout: WheelLayout) -> tuple[bool, int]:
    python = any(file.path.endswith(".py") for file in layout.files)
    return python, -layout.size if python else layout.size


def _bucket(name: str) -> int:
    return int.from_bytes(hashlib.sha256(canonicalize_name(name).encode()).digest()[:4]) % BUCKETS


def _bucket_plan(layouts: list[WheelLayout]) -> LayerPlan:
    ordered = sorted(layouts, key=lambda layout: layout.wheel.name)
    title = ", ".join(f"{layout.wheel.name} {layout.wheel.version}" for layout in ordered)
    return LayerPlan(title=title, layouts=tuple(ordered))


def _check_owners(layouts: Sequence[WheelLayout]) -> None:
    """Refuse two wheels that own one path with different bytes: which one wins would depend on their order."""
    owners: dict[str, tuple[WheelLayout, File]] = {}
    for layout in layouts:
        for file in layout.files:
            other, theirs = owners.setdefault(file.path, (layout, file))
            if other is not layout and not _same(file, theirs):
                raise _conflict(other, layout, f"both own {file.path}, with different bytes")
    for layout in layouts:
        if both := folders_above(file.path for file in layout.files) & owners.keys():
            folder = min(both)
            raise _conflict(owners[folder][0], layout, f"both own {folder}, one as a file, one as a folder")


def _conflict(one: WheelLayout, other: WheelLayout, text: str) -> BuildFailedError:
    return BuildFailedError(
        f"{one.wheel.filename} and {other.wheel.filename} {text}",
        remedy="one environment cannot hold both: drop one, or patch it and build it from source",
    )


def _same(one: File, other: File) -> bool:
    return (one.size, one.mode, record_hash(one)) == (other.size, other.mode, record_hash(other))
