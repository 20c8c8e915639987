"""From uv's answer to a lock: one wheel of each package, the best for the target, with its size."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from builder.download import Download, fetch_all
from builder.errors import ResolveError
from builder.lock.index import index_endpoint, index_of, with_credentials
from builder.lock.model import LockedWheel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from packaging.tags import Tag

    from builder.lock.target import Target
    from builder.recipe.model import Index
    from builder.settings import Settings
    from builder.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenWheel:
    """A wheel as an index lists it; `size` is in bytes, None if the index does not say it."""

    name: str
    version: str
    filename: str
    url: str
    sha256: str
    size: int | None


def chosen_wheels(answer: bytes, target: Target) -> tuple[ChosenWheel, ...]:
    """Return the best wheel of each package of a `pylock.toml` that applies to the target, by name.

    The best has the most specific tag (PEP 425), then the highest build number. Raise ResolveError for a package
    without a fitting wheel or without a sha256.
    """
    ranks = target.tag_ranks()
    packages = [
        package
        for package in tomllib.loads(answer.decode()).get("packages", ())
        if "marker" not in package or target.applies(package["marker"])
    ]
    return tuple(_chosen(package, ranks, target) for package in sorted(packages, key=lambda one: str(one["name"])))


def locked_wheels(
    chosen: Iterable[ChosenWheel], indexes: Mapping[str, Index], store: Store, settings: Settings
) -> tuple[LockedWheel, ...]:
    """Return the wheels with their sizes; those that the index is silent on are fetched into the store and measured."""
    wheels = tuple(chosen)
    default = index_endpoint(settings)
    downloads = [
        Download(
            url=with_credentials(wheel.url, index_of(wheel.name, indexes) or default),
            sha256=wheel.sha256,
            size=None,
            label=wheel.filename,
        )
        for wheel in wheels
        if wheel.size is None
    ]
    fetch_all(downloads, store, settings)
    return tuple(
        LockedWheel(
            name=wheel.name,
            version=wheel.version,
            filename=wheel.filename,
            sha256=wheel.sha256,
            size=store.path(wheel.sha256).stat().st_size if wheel.size is None else wheel.size,
        )
        for wheel in wheels
    )


def refuse_other_index(
    chosen: Iterable[ChosenWheel], requirements: Iterable[str], indexes: Mapping[str, Index]
) -> None:
    """Raise ResolveError for a tied package that the default index gave: uv ties only direct requirements."""
    direct = {canonicalize_name(Requirement(line).name) for line in requirements}
    tied: dict[str, str] = {
        canonicalize_name(package): name for name, index in indexes.items() for package in index.packages
    }
    for wheel in chosen:
        if wheel.name in tied and wheel.name not in direct:
            raise ResolveError(
                f"indexes.{tied[wheel.name]}: {wheel.name} is needed, but only by other packages",
                remedy=f"pin {wheel.name} in `stack`, so that it comes from that index and from nowhere else",
            )


def _chosen(package: dict[str, Any], ranks: Mapping[Tag, int], target: Target) -> ChosenWheel:
    label = f"{package['name']} {package.get('version', '')}".rstrip()
    fitting = [(rank, wheel) for wheel in package.get("wheels", ()) if (rank := _rank(_filename(wheel), ranks))]
    if not fitting:
        raise ResolveError(f"{label} has no wheel for {target}", remedy="pin another version, or build it from source")
    wheel = max(fitting, key=lambda pair: pair[0])[1]
    sha256 = wheel.get("hashes", {}).get("sha256")
    if sha256 is None:
        raise ResolveError(
            f"{label}: the package index gives no sha256 for {_filename(wheel)}",
            remedy="use an index that does: without it the file cannot be locked",
        )
    return ChosenWheel(
        name=package["name"],
        version=package["version"],
        filename=_filename(wheel),
        url=wheel["url"],
        sha256=sha256,
        size=wheel.get("size"),
    )


def _filename(wheel: Mapping[str, Any]) -> str:
    return str(wheel.get("name") or unquote(urlsplit(wheel["url"]).path.rpartition("/")[2]))


def _rank(filename: str, ranks: Mapping[Tag, int]) -> tuple[int, tuple[Any, ...], str] | None:
    """Return how well a wheel fits, greater is better; None if it does not fit."""
    try:
        _, _, build, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return None
    fitting = [ranks[tag] for tag in tags if tag in ranks]
    return (-min(fitting), build, filename) if fitting else None
