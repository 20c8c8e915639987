"""What a machine reaches of what locks and builds are made from: the package index, Debian, a recipe's own servers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builder.beside import Beside
from builder.download import Patience, get, remedy_for, shown
from builder.errors import EnvbuildError
from builder.lock.debian_archive import SET_A_MIRROR, find_mirrors
from builder.lock.image_base import mirrored_reference
from builder.lock.index import index_endpoint, mirrored, project_files
from builder.preflight.findings import Finding
from builder.registry.client import RegistryClient
from builder.registry.reference import parse_reference, parse_repository
from builder.settings import mirror_setting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.recipe.model import Index, Recipe
    from builder.settings import Settings

QUICK = Patience(attempts=1, silence=8.0)
COMMON = "pip"  # a project that every index has
SUITE = "trixie"

Check = tuple[str, str, "Callable[[], str]"]
"""What the finding is called, what to do if it fails, and what says in a sentence that it is well, or raises."""


def reach_findings(recipe: Recipe | None, settings: Settings) -> tuple[Finding, ...]:
    """Return one finding for each server that a lock or a build of a recipe would ask, all asked at once.

    One that does not answer is a warning: what the store has needs no server.
    """
    with Beside() as beside:
        begun = [beside.start(partial(_finding, *check)) for check in _checks(recipe, settings)]
        return tuple(future.result() for future in begun)


def _checks(recipe: Recipe | None, settings: Settings) -> Iterator[Check]:
    yield "package-index", "set ENVBUILD_INDEX_URL to an index that answers", partial(_index, settings)
    if recipe is None or recipe.base.debian is not None:
        suite = (recipe.base.debian if recipe else None) or SUITE
        yield "debian-mirror", SET_A_MIRROR, partial(_debian, suite, settings)
    for name, index in mirrored(recipe.indexes, settings).items() if recipe else ():
        remedy = f"set {mirror_setting(name)} to a mirror of that index"
        yield f"index {name}", remedy, partial(_own_index, index, settings)
    if recipe is not None and recipe.base.image is not None:
        remedy = "log in with `docker login`, or set ENVBUILD_REGISTRY_MIRRORS"
        yield "base-image", remedy, partial(_image, recipe.base.image, settings)
    if settings.share is not None:
        remedy = "log in with `docker login`, or unset ENVBUILD_SHARE"
        yield "share", remedy, partial(_share, settings.share, settings)


def _finding(rule: str, remedy: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(rule=rule, severity="ok", sentence=check(), certainty="reproduced")
    except EnvbuildError as error:
        sentence = "; ".join((error.message, *error.evidence[:1]))
        return Finding(
            rule=rule,
            severity="warning",
            sentence=sentence,
            remedy=remedy_for(sentence, remedy),
            certainty="reproduced",
        )


def _index(settings: Settings) -> str:
    index = index_endpoint(settings)
    project_files(COMMON, index, settings, lambda _: False, patience=QUICK)
    return f"{shown(index)} answers"


def _debian(suite: str, settings: Settings) -> str:
    mirrors = find_mirrors(settings)
    for base, name in ((mirrors.debian, suite), (mirrors.security, f"{suite}-security")):
        get(f"{base}/dists/{name}/InRelease", settings, patience=QUICK)
    return f"{shown(mirrors.debian)} and {shown(mirrors.security)} have {suite}"


def _own_index(index: Index, settings: Settings) -> str:
    package = index.packages[0]
    project_files(canonicalize_name(package), index.url, settings, lambda _: False, patience=QUICK)
    return f"{shown(index.url)} has {package}"


def _image(image: str, settings: Settings) -> str:
    reference = mirrored_reference(parse_reference(image), settings)
    with RegistryClient(settings, patience=QUICK) as client:
        client.manifest(reference)
    return f"{reference} is there"


def _share(share: str, settings: Settings) -> str:
    with RegistryClient(settings, patience=QUICK) as client:
        client.tags(parse_repository(share))
    return f"{share} answers"
