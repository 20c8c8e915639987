"""The machine that the wheels are for: its Python and its C library, and which wheels and markers fit them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.markers import Marker
from packaging.tags import compatible_tags, cpython_tags

from builder.errors import ResolveError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.tags import Tag

    from builder.lock.model import LockedImage
    from builder.recipe.model import Recipe

# The version of libc6 in each suite: glibc's release is what a manylinux tag promises (PEP 600).
GLIBC = {"bookworm": 36, "trixie": 41}
OLDEST_GLIBC = 5
# The names from before PEP 600 by the glibc minor version that each stands for (PEP 600, "Legacy manylinux tags").
LEGACY = {17: "manylinux2014_x86_64", 12: "manylinux2010_x86_64", 5: "manylinux1_x86_64"}
# The glibc minor versions that uv can resolve for: `uv pip compile --help`, --python-platform.
UV_GLIBC = (17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Linux on x86_64 with a CPython minor version (`3.13`) and glibc 2.`glibc`."""

    python: str
    glibc: int

    def __str__(self) -> str:
        return f"Python {self.python} on Linux x86_64 with glibc 2.{self.glibc}"

    @property
    def uv_platform(self) -> str:
        """The newest platform known to uv that this machine can stand for."""
        return f"x86_64-manylinux_2_{max(minor for minor in UV_GLIBC if minor <= self.glibc)}"

    def tag_ranks(self) -> dict[Tag, int]:
        """Return the wheel tags that fit, the best with rank 0 (PEP 425, PEP 600)."""
        version = tuple(int(part) for part in self.python.split("."))
        interpreter = f"cp{''.join(self.python.split('.'))}"
        platforms = tuple(self._platforms())
        ordered = (
            *cpython_tags(version, abis=[interpreter], platforms=platforms),
            *compatible_tags(version, interpreter=interpreter, platforms=platforms),
        )
        return {tag: rank for rank, tag in enumerate(ordered)}

    def applies(self, marker: str, extra: str = "") -> bool:
        """Say whether a dependency marker is true here (PEP 508); the unknown patch version counts as 0, as in uv."""
        return Marker(marker).evaluate(
            {
                "extra": extra,
                "implementation_name": "cpython",
                "implementation_version": f"{self.python}.0",
                "os_name": "posix",
                "platform_machine": "x86_64",
                "platform_python_implementation": "CPython",
                "platform_release": "",
                "platform_system": "Linux",
                "platform_version": "",
                "python_full_version": f"{self.python}.0",
                "python_version": self.python,
                "sys_platform": "linux",
            }
        )

    def _platforms(self) -> Iterator[str]:
        for minor in range(self.glibc, OLDEST_GLIBC - 1, -1):
            yield f"manylinux_2_{minor}_x86_64"
            if minor in LEGACY:
                yield LEGACY[minor]
        yield "linux_x86_64"


def target_of(recipe: Recipe, base: LockedImage | None) -> Target:
    """Return the machine that a recipe's image is; `base` is the locked base where that is an image of a registry."""
    if base is not None:
        return Target(python=recipe.python, glibc=base.glibc)
    if recipe.base.debian is None:
        raise ResolveError(f"base.image: {recipe.base.image} must be locked before its C library is known")
    return Target(python=recipe.python, glibc=GLIBC[recipe.base.debian])
