"""The extras that uv forgets of a package whose requirements are overruled, and the metadata that tells of them."""

from __future__ import annotations

import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.download import Download, NotFoundError, fetch_all, get
from builder.lock.index import index_endpoint, index_of, with_credentials

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.lock.choice import ChosenWheel
    from builder.recipe.model import Index
    from builder.settings import Settings
    from builder.store import Store

LOOK_UPS = 16  # metadata files asked for at a time


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
    """Return what each wheel requires, by its sha256: from the metadata beside it (PEP 658), else from the wheel."""
    default = index_endpoint(settings)

    def read(wheel: ChosenWheel) -> tuple[str, tuple[str, ...]]:
        url = with_credentials(wheel.url, index_of(wheel.name, indexes) or default)
        try:
            metadata = get(f"{url}.metadata", settings).body
        except NotFoundError:
            metadata = _from_wheel(wheel, url, store, settings)
        return wheel.sha256, tuple(parse_email(metadata)[0].get("requires_dist", ()))

    with ThreadPoolExecutor(LOOK_UPS) as pool:
        return dict(pool.map(read, chosen))


def _from_wheel(wheel: ChosenWheel, url: str, store: Store, settings: Settings) -> bytes:
    fetch_all([Download(url=url, sha256=wheel.sha256, size=wheel.size, label=wheel.filename)], store, settings)
    folder = "-".join(wheel.filename.split("-")[:2])
    with zipfile.ZipFile(store.sound(wheel.sha256)) as archive:
        return archive.read(f"{folder}.dist-info/METADATA")
