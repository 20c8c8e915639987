"""One side of a comparison: what is known of a lock, or of an image of the local engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from builder.compare import inventory
from builder.engine import ContainerRun, Mount
from builder.errors import BuildFailedError
from builder.lock.changes import Package, PackageState, packages_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from builder.engine import Engine, ImageFacts
    from builder.lock.changes import World
    from builder.lock.model import Lock

PROGRAM = "/envbuild/inventory.py"
MEMORY = 1 << 30
TIMEOUT = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """`packages` is None where an image cannot say them, for the reason in `silence`; sizes are in bytes.

    `measure` says of what: the files that are fetched, or what they become when they are installed.
    """

    name: str
    measure: Literal["fetched", "installed"]
    packages: tuple[Package, ...] | None
    image: ImageFacts | None = None
    silence: str = ""


def lock_side(name: str, lock: Lock) -> Side:
    """Return what a lock says."""
    return Side(name=name, measure="fetched", packages=packages_of(lock))


def image_side(name: str, facts: ImageFacts, engine: Engine) -> Side:
    """Return what an image says of itself, and the packages that are found when its own Python looks."""
    try:
        ended = engine.run(_look_inside(facts.image_id))
    except BuildFailedError as error:  # it has no python3
        return Side(name=name, measure="installed", packages=None, image=facts, silence=error.message)
    report = _last_line(ended.stdout)
    if ended.code != 0 or report is None:
        last = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
        silence = f"its Python ended with exit code {ended.code}: {''.join(last)}"
        return Side(name=name, measure="installed", packages=None, image=facts, silence=silence)
    packages = (*_read(report["debian"], "debian"), *_read(report["python"], "python"))
    ordered = tuple(sorted(packages, key=lambda package: package.identity))
    return Side(name=name, measure="installed", packages=ordered, image=facts)


def _look_inside(image: str) -> ContainerRun:
    return ContainerRun(
        image=image,
        command=("python3", PROGRAM),
        environment={"PYTHONDONTWRITEBYTECODE": "1"},
        mounts=(Mount(source=Path(inventory.__file__), target=PROGRAM),),
        memory=MEMORY,
        timeout=TIMEOUT,
        read_only_root=True,
    )


def _last_line(output: bytes) -> dict[str, Any] | None:
    lines = output.decode(errors="replace").strip().splitlines()
    try:
        value = json.loads(lines[-1]) if lines else None
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _read(rows: Iterable[dict[str, Any]], world: World) -> Iterator[Package]:
    for row in rows:
        state = PackageState(version=row["version"], bytes=row["bytes"])
        yield Package(world=world, part="image", name=row["name"], state=state)
