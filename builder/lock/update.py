"""Which packages of a lock may move to another version when it is made again; all others stay."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.lock.model import Lock, LockedWheel
    from builder.recipe.source import RecipeFile

BASE = "base"
"""The name that stands for a base that is an image: its tag may mean another image by now."""
DEBIAN = "debian"
"""The name that stands for all Debian packages: one signed index names them all, so they move together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """The packages that may move, by canonical name, or all of them; nothing is asked of a lock by default."""

    names: tuple[str, ...] = ()
    everything: bool = False

    @property
    def asked(self) -> bool:
        """Whether something may move though the recipe is unchanged."""
        return self.everything or bool(self.names)

    @property
    def moves_debian(self) -> bool:
        """Whether Debian's packages may move."""
        return self.everything or DEBIAN in self.names

    @property
    def moves_base(self) -> bool:
        """Whether a base image may move."""
        return self.everything or BASE in self.names

    def kept(self, wheels: Iterable[LockedWheel]) -> tuple[LockedWheel, ...]:
        """Return the wheels whose versions are to be kept where they can be."""
        moving = {canonicalize_name(name) for name in self.names}
        return () if self.everything else tuple(wheel for wheel in wheels if wheel.name not in moving)


def check_update(update: Update, lock: Lock, source: RecipeFile) -> tuple[str, ...]:
    """Raise UsageError for a name that the lock does not have; return a remark for each that the recipe pins."""
    for name in update.names:
        _check_name(canonicalize_name(name), lock, source)
    moving = {canonicalize_name(name) for name in update.names}
    return tuple(
        f"{source.place_of('stack', name)}: {name} is pinned to {package.version} here: change it to move the package"
        for name, package in source.recipe.stack.items()
        if canonicalize_name(name) in moving and package.version is not None
    )


def _check_name(name: str, lock: Lock, source: RecipeFile) -> None:
    wheels = (*lock.wheels, *lock.toolchain_wheels, *lock.compiler_wheels)
    known = {BASE if lock.file.base else DEBIAN, *(wheel.name for wheel in wheels)}
    if name in known:
        return
    debs = {deb.name for deb in (*lock.base_debs, *lock.toolchain_debs)}
    if name.removeprefix("deb:") in debs:
        raise UsageError(
            f"{name} is a Debian package, and those move together", remedy=f"say --update {DEBIAN} to move them all"
        )
    if name in {canonicalize_name(own) for own, package in source.recipe.stack.items() if package.from_source}:
        raise UsageError(f"{name} is built from source", remedy=f"change it in {source.place_of('stack', name)}")
    near = difflib.get_close_matches(name, sorted(known), n=3)
    raise UsageError(
        f"the lock of {lock.name} has no package {name!r}",
        remedy=f"did you mean {', '.join(near)}?" if near else "look it up in pylock.toml",
    )
