"""Which wheel a path belongs to where several want it: a wheel may lie over one that it requires."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builder.build.hostile import folders_above
from builder.build.tarlayer import File
from builder.build.wheelfile import record_hash
from builder.errors import BuildFailedError
from builder.lock.needs import lies_over, needed_packages

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builder.build.wheelfile import WheelInput, WheelLayout
    from builder.lock.needs import Needs
    from builder.lock.target import Target

Owned = tuple["WheelLayout", File]
"""A file, and the wheel that wants to own its path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """Wheels of which no two own one path with different bytes, in the order in which they were given.

    `last` are those that lie over another: an installer that knows no order has to install them again after all others,
    in this order.
    """

    layouts: tuple[WheelLayout, ...]
    last: tuple[WheelInput, ...] = ()


def settle_owners(layouts: Iterable[WheelLayout], requirements: Iterable[str], target: Target) -> Settled:
    """Leave each path to one wheel, or to several with the same bytes, and out of the others (`overlaid`).

    The file of the wheel that needs all others of them stays (`lies_over`), so no order of layers decides anything.
    `requirements` are what the recipe asks for, with extras. Raises BuildFailedError if two wheels own one path with
    different bytes and neither requires the other, or each does; if a wheel would lie over the metadata of another; or
    if a file of one is a folder of another.
    """
    given = tuple(layouts)
    ordered = sorted(given, key=lambda layout: (-layout.size, layout.wheel.name))
    _refuse_folders(ordered)
    contested = _contested(ordered)
    if not contested:
        return Settled(layouts=given)
    requires: dict[str, tuple[str, ...]] = {canonicalize_name(each.wheel.name): each.requires for each in given}
    needs = needed_packages(requirements, requires, target.applies)
    lost: dict[WheelInput, set[str]] = {}
    last: set[WheelInput] = set()
    for path, owned in contested.items():
        winner, losers = _parted(owned, needs)
        last.add(winner.wheel)
        for loser in losers:
            lost.setdefault(loser.wheel, set()).add(path)
    return Settled(
        layouts=tuple(_without(layout, lost.get(layout.wheel, frozenset())) for layout in given),
        last=tuple(sorted(last, key=lambda wheel: (_count(wheel, needs), wheel.name))),
    )


def _count(wheel: WheelInput, needs: Needs) -> int:
    """Return how many other wheels one needs: more than each of those over which it lies."""
    name = canonicalize_name(wheel.name)
    return len(needs[name] - {name})


def _contested(layouts: Sequence[WheelLayout]) -> dict[str, list[Owned]]:
    """Return the paths with files of different bytes, and whose they are; each wheel also owns its RECORD."""
    first: dict[str, Owned] = {}
    several: dict[str, list[Owned]] = {}
    for layout in layouts:
        for file in (*layout.files, File(path=layout.record, size=-1, content=b"")):
            mine = (layout, file)
            other = first.setdefault(file.path, mine)
            if other is not mine:
                several.setdefault(file.path, [other]).append(mine)
    return {path: owned for path, owned in several.items() if not all(_same(owned[0], each) for each in owned)}


def _parted(owned: Sequence[Owned], needs: Needs) -> tuple[WheelLayout, list[WheelLayout]]:
    """Return the wheel whose file stays, and those whose different files do not."""
    for mine in owned:
        others = [theirs for theirs in owned if not _same(mine, theirs)]
        if all(_may_lie_over(mine, theirs, needs) for theirs in others):
            return mine[0], [layout for layout, _ in others]
    one, other = next((one, other) for one in owned for other in owned if not _settled(one, other, needs))
    text = f"both own {one[1].path}, with different bytes, and {_reason(one, other, needs)}"
    raise _conflict(one[0], other[0], text)


def _settled(one: Owned, other: Owned, needs: Needs) -> bool:
    return _same(one, other) or _may_lie_over(one, other, needs) or _may_lie_over(other, one, needs)


def _may_lie_over(upper: Owned, lower: Owned, needs: Needs) -> bool:
    return not _is_metadata(lower) and lies_over(upper[0].wheel.name, lower[0].wheel.name, needs)


def _is_metadata(owned: Owned) -> bool:
    layout, file = owned
    return file.path.startswith(f"{posixpath.dirname(layout.record)}/")


def _reason(one: Owned, other: Owned, needs: Needs) -> str:
    if _is_metadata(one) or _is_metadata(other):
        return "it is the metadata of one of them"
    names = [canonicalize_name(layout.wheel.name) for layout, _ in (one, other)]
    mutual = names[0] in needs[names[1]] and names[1] in needs[names[0]]
    return "each requires the other" if mutual else "neither requires the other"


def _without(layout: WheelLayout, paths: set[str] | frozenset[str]) -> WheelLayout:
    if not paths:
        return layout
    return replace(
        layout,
        files=tuple(file for file in layout.files if file.path not in paths),
        overlaid=tuple(file for file in layout.files if file.path in paths),
    )


def _refuse_folders(layouts: Sequence[WheelLayout]) -> None:
    owners: Mapping[str, WheelLayout] = {file.path: layout for layout in layouts for file in layout.files}
    for layout in layouts:
        if both := folders_above(file.path for file in layout.files) & owners.keys():
            folder = min(both)
            raise _conflict(owners[folder], layout, f"both own {folder}, one as a file, one as a folder")


def _conflict(one: WheelLayout, other: WheelLayout, text: str) -> BuildFailedError:
    return BuildFailedError(
        f"{one.wheel.filename} and {other.wheel.filename} {text}",
        remedy="one environment cannot hold both: drop one, or patch it and build it from source",
    )


def _same(one: Owned, other: Owned) -> bool:
    return _facts(one[1]) == _facts(other[1])


def _facts(file: File) -> tuple[int, int, str]:
    return file.size, file.mode, record_hash(file)
