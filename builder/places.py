"""Where a command writes what a person asked for: only to places that are free, and complete or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import BuildFailedError, UsageError, unwritten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def refuse_taken(places: Iterable[Path]) -> None:
    """Raise UsageError for the first place where something is already, but for an empty folder, or that is named twice.

    The one rule of every file and folder that a person names, applied before any work is done for them.
    """
    seen: set[Path] = set()
    for place in places:
        if place.is_symlink() or (place.exists() and not _is_empty(place)):
            raise UsageError(f"{place} is there already", remedy="remove it, or name a place that does not exist yet")
        if place.resolve() in seen:
            raise UsageError(f"{place} is named twice", remedy="name a place of its own for each export")
        seen.add(place.resolve())


def obstacle(place: Path) -> str:
    """Return what keeps this process from writing to a place, in words; nothing where nothing does.

    Of a place that is not there yet the nearest folder that is there decides.
    """
    place = place.absolute()
    ground = next(each for each in (place, *place.parents) if os.path.lexists(each))
    if ground != place and not ground.is_dir():
        return f"{ground} is no folder"
    return "" if os.access(ground, os.W_OK) else f"{ground} does not allow it"


def _is_empty(place: Path) -> bool:
    return place.is_dir() and not any(place.iterdir())


@contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """Give a free name beside the target; what the block leaves under it becomes the target if the block ends well.

    Raises UsageError if the target is taken or may not be written, BuildFailedError if the disk refuses; then nothing
    is left of it.
    """
    refuse_taken([target])
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        room = tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise unwritten(
            error, f"{target} cannot be written: {error.strerror}", remedy="name a place that you can write"
        ) from error
    try:
        with room as folder:
            path = Path(folder) / target.name
            yield path
            if target.is_dir():
                target.rmdir()
            path.rename(target)
    except OSError as error:
        raise BuildFailedError(
            f"{target} cannot be written: {error.strerror or error}", remedy="name a place on a disk with enough room"
        ) from error
