"""What locked wheels require: read from the wheels in the store, else from the metadata that the index has."""

from __future__ import annotations

import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from packaging.metadata import parse_email

from builder.download import shown
from builder.errors import ResolveError
from builder.lock.choice import ChosenWheel
from builder.lock.extras import declared_requirements
from builder.lock.index import index_endpoint, index_of
from builder.lock.wheels import find_wheel

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.lock.model import LockedWheel
    from builder.recipe.model import Index
    from builder.settings import Settings
    from builder.store import Store

KIND = "requires"
LOOK_UPS = 16


def requirements_by_name(
    wheels: tuple[LockedWheel, ...], indexes: Mapping[str, Index], store: Store, settings: Settings
) -> dict[str, tuple[str, ...]]:
    """Return the `Requires-Dist` lines of each wheel by its package's name; what was fetched is kept in the store.

    Raise ResolveError if a wheel that the store does not have is not in its index either.
    """
    known = {wheel.sha256: _known(wheel, store) for wheel in wheels}
    missing = [wheel for wheel in wheels if known[wheel.sha256] is None]
    with ThreadPoolExecutor(LOOK_UPS) as pool:
        chosen = tuple(pool.map(lambda wheel: _chosen(wheel, indexes, settings), missing))
    fetched = declared_requirements(chosen, indexes, store, settings) if chosen else {}
    for sha256, lines in fetched.items():
        store.keep_result(KIND, sha256, {"requires": list(lines)})
    return {wheel.name: fetched.get(wheel.sha256) or known[wheel.sha256] or () for wheel in wheels}


def _known(wheel: LockedWheel, store: Store) -> tuple[str, ...] | None:
    if store.has(wheel.sha256):
        return _requires(store.path(wheel.sha256), wheel.filename)
    record = store.result(KIND, wheel.sha256)
    return None if record is None else tuple(record["requires"])


def _requires(path: Path, filename: str) -> tuple[str, ...]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            top = [name for name in names if name.count("/") == 1]
            return tuple(parse_email(archive.read(top[0]))[0].get("requires_dist", ()))
    except (zipfile.BadZipFile, IndexError) as error:
        raise ResolveError(f"{filename} in the store is not a wheel: {error}", remedy=f"remove {path}") from None


def _chosen(wheel: LockedWheel, indexes: Mapping[str, Index], settings: Settings) -> ChosenWheel:
    index = index_of(wheel.name, indexes) or index_endpoint(settings)
    found = find_wheel(wheel, index, settings)
    return ChosenWheel(
        name=wheel.name,
        version=wheel.version,
        filename=wheel.filename,
        url=found.url,
        sha256=wheel.sha256,
        size=wheel.size,
    )


def index_words(name: str, indexes: Mapping[str, Index]) -> str:
    """Return which index a package comes from, in words."""
    for index, value in indexes.items():
        if index_of(name, {index: value}) is not None:
            return f"the index {index!r} of the recipe ({shown(value.url)})"
    return "the default index"
