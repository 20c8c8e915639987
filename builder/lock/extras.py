"""The extras that uv forgets or passes over, and the metadata that tells of them."""

from __future__ import annotations

import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from typing import TYPE_CHECKING

from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.download import Download, DownloadError, fetch_all, get
from builder.errors import ResolveError
from builder.lock.index import index_endpoint, index_of, with_credentials

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from packaging.metadata import RawMetadata

    from builder.lock.choice import ChosenWheel
    from builder.recipe.model import Index
    from builder.settings import Settings
    from builder.store import Store

LOOK_UPS = 16  # metadata files asked for at a time
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


def with_extras(overrides: Iterable[str], asked: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """Return the overrides with all extras that are asked of their packages, sorted."""
    widened = []
    for line in overrides:
        override = Requirement(line)
        override.extras |= asked.get(canonicalize_name(override.name), frozenset())
        widened.append(str(override))
    return tuple(sorted(widened))


def declared_requirements(
    chosen: Iterable[ChosenWheel], indexes: Mapping[str, Index], store: Store, settings: Settings
) -> dict[str, tuple[str, ...]]:
    """Return what each wheel requires, by its sha256."""

    def read(wheel: ChosenWheel) -> tuple[str, tuple[str, ...]]:
        return wheel.sha256, tuple(_metadata(wheel, indexes, store, settings).get("requires_dist", ()))

    with ThreadPoolExecutor(LOOK_UPS) as pool:
        return dict(pool.map(read, chosen))


def refuse_unknown_extras(
    chosen: Iterable[ChosenWheel],
    asked: Mapping[str, Iterable[str]],
    indexes: Mapping[str, Index],
    store: Store,
    settings: Settings,
) -> None:
    """Raise ResolveError for an extra that is asked of a wheel, by its name, and that it does not have.

    uv says nothing of it, so that a misspelt extra would be packages that are not there.
    """
    for wheel in chosen:
        extras = {canonicalize_name(extra): extra for extra in asked.get(wheel.name, ())}
        if not extras:
            continue
        known = _extras_of(_metadata(wheel, indexes, store, settings))
        for plain, extra in extras.items():
            if plain not in known:
                near = get_close_matches(plain, known, n=1)
                raise ResolveError(
                    f"{wheel.name} {wheel.version} has no extra {extra!r}",
                    remedy=f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(known)) or 'none'}",
                )


def _extras_of(metadata: RawMetadata) -> set[str]:
    """Return the extras that metadata declares, or only mentions in its markers."""
    mentioned = _EXTRA.findall("\n".join(metadata.get("requires_dist", ())))
    return {canonicalize_name(extra) for extra in (*metadata.get("provides_extra", ()), *mentioned)}


def _metadata(wheel: ChosenWheel, indexes: Mapping[str, Index], store: Store, settings: Settings) -> RawMetadata:
    """Return what a wheel says of itself: from the file beside it (PEP 658), else from the wheel."""
    url = with_credentials(wheel.url, index_of(wheel.name, indexes) or index_endpoint(settings))
    try:
        data = get(f"{url}.metadata", settings).body
    except DownloadError:  # some servers say 403 of what they do not have
        data = _from_wheel(wheel, url, store, settings)
    return parse_email(data)[0]


def _from_wheel(wheel: ChosenWheel, url: str, store: Store, settings: Settings) -> bytes:
    fetch_all([Download(url=url, sha256=wheel.sha256, size=wheel.size, label=wheel.filename)], store, settings)
    folder = "-".join(wheel.filename.split("-")[:2])
    with zipfile.ZipFile(store.sound(wheel.sha256)) as archive:
        return archive.read(f"{folder}.dist-info/METADATA")
