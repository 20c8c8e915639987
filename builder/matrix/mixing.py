"""Two locks -> the changes between them, in an order in which they can be made, and the lock with some of them made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.document import canonical_yaml, key_of, sha256_bytes
from builder.lock.changes import changes_between
from builder.lock.lockfile import COMPILER, LOCK, PYLOCK, TOOLCHAIN
from builder.lock.model import Lock, LockFile
from builder.lock.pylock import write_pylock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from builder.lock.changes import PackageChange
    from builder.lock.model import LockedWheel
    from builder.lock.target import Target

DEBIAN = "debian"
SOURCES = "sources"
TOOLS = "toolchain"


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """Packages that go from the good lock's state to the bad one's together; `names` are keys of `_key`."""

    names: frozenset[str]
    lines: tuple[str, ...]


def moves_between(
    good: Lock, bad: Lock, requires: Callable[[Lock], Mapping[str, tuple[str, ...]]], target: Target
) -> tuple[Move, ...]:
    """Return the changes from one lock to another, each after those that it needs.

    `requires` gives what each wheel of a lock asks for. Wheels that need each other's new state are one move; Debian's
    packages, the compiled sources and the toolchain are one move each, for they were chosen together.
    """
    changes: dict[str, list[PackageChange]] = {}
    for change in changes_between(good, bad):
        changes.setdefault(_key(change), []).append(change)
    needs = _needs(good, bad, frozenset(changes), requires, target)
    reach = {name: _closure(name, needs) for name in changes}
    groups = {frozenset(other for other in reach[name] if name in reach[other]) for name in changes}
    ordered = sorted(groups, key=lambda group: (len(reach[min(group)]), min(group)))
    return tuple(
        Move(names=group, lines=tuple(change.line for name in sorted(group) for change in changes[name]))
        for group in ordered
    )


def mixed(good: Lock, bad: Lock, moves: Iterable[Move]) -> tuple[Lock, dict[str, bytes]]:
    """Return the good lock with some moves made, and its files."""
    names = frozenset(name for move in moves for name in move.names)
    tools, sources = (bad if TOOLS in names else good), (bad if SOURCES in names else good)
    wheels = _wheels(good, bad, names)
    python = str(sources.file.question["python"]["python"])
    files = {
        PYLOCK: write_pylock(wheels, python=python),
        **({TOOLCHAIN: write_pylock(tools.toolchain_wheels, python=python)} if TOOLCHAIN in tools.file.python else {}),
        **({COMPILER: write_pylock(tools.compiler_wheels, python=python)} if COMPILER in tools.file.python else {}),
    }
    file = LockFile(
        question=sources.file.question,
        debian=(bad if DEBIAN in names else good).file.debian,
        python={name: sha256_bytes(content) for name, content in files.items()},
        sources=sources.file.sources,
        tools=sources.file.tools,
    )
    lock = replace(
        sources,
        file=file,
        wheels=wheels,
        toolchain_wheels=tools.toolchain_wheels,
        compiler_wheels=tools.compiler_wheels,
        digest=key_of(file.to_plain()),
    )
    return lock, {**files, LOCK: canonical_yaml(file.to_plain())}


def _key(change: PackageChange) -> str:
    """Return what moves with a change: a wheel of the image alone, everything else with its world."""
    if change.world == "debian":
        return DEBIAN
    if change.world == "sources":
        return SOURCES
    return f"wheel {change.name}" if change.part == "image" else TOOLS


def _wheels(good: Lock, bad: Lock, names: frozenset[str]) -> tuple[LockedWheel, ...]:
    moved = {name.removeprefix("wheel ") for name in names if name.startswith("wheel ")}
    kept = [wheel for wheel in good.wheels if wheel.name not in moved]
    new = [wheel for wheel in bad.wheels if wheel.name in moved]
    return tuple(sorted([*kept, *new], key=lambda wheel: wheel.name))


def _needs(
    good: Lock,
    bad: Lock,
    changed: frozenset[str],
    requires: Callable[[Lock], Mapping[str, tuple[str, ...]]],
    target: Target,
) -> dict[str, set[str]]:
    """Return which wheels can take their new state only after which others.

    A new wheel whose requirement only the new state of another one meets needs that one; an old wheel whose requirement
    the new state of another one breaks must move before that one.
    """
    needs: dict[str, set[str]] = {name: set() for name in changed}
    old, new = _versions(good), _versions(bad)
    for lock, has, lacks in ((bad, new, old), (good, old, new)):
        for name, lines in requires(lock).items():
            for other in _asked(lines, target, has, lacks):
                pair = (f"wheel {name}", f"wheel {other}")
                if name != other and changed.issuperset(pair):
                    first, second = pair if lock is bad else pair[::-1]
                    needs[first].add(second)
    return needs


def _asked(lines: Sequence[str], target: Target, has: Mapping[str, str], lacks: Mapping[str, str]) -> set[str]:
    """Return the packages that requirements name and whose version in `has` meets them, and in `lacks` does not."""
    found: set[str] = set()
    for line in lines:
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not target.applies(str(requirement.marker)):
            continue
        if _meets(requirement, has.get(name)) and not _meets(requirement, lacks.get(name)):
            found.add(name)
    return found


def _meets(requirement: Requirement, version: str | None) -> bool:
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def _versions(lock: Lock) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in lock.wheels}


def _closure(name: str, needs: Mapping[str, set[str]]) -> frozenset[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting += needs[current]
    return frozenset(found)
