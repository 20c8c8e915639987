"""The user's package index: which one it is, and where it keeps the files of a project."""

from __future__ import annotations

import configparser
import json
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from packaging.utils import canonicalize_name

from builder.download import DEFAULT_PATIENCE, DownloadError, NotFoundError, Patience, get, remedy_for, shown
from builder.errors import ResolveError
from builder.settings import mirror_setting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from pypi_simple import ProjectPage

    from builder.download import Answer
    from builder.recipe.model import Index, Recipe
    from builder.settings import Settings

INDEX_REMEDY = "check the network and the index that ENVBUILD_INDEX_URL, UV_DEFAULT_INDEX or PIP_INDEX_URL names"

SETTINGS = "ENVBUILD_INDEX_URL, or what uv and pip are configured with,"
BRIEF = Patience(attempts=2, silence=20.0)  # for a question that is only to find out whether a server is there


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexFile:
    """Where an index keeps a file, and what it says of it; `size` is in bytes, `uploaded` is aware of its time zone.

    `url` may carry the user's password: show it through `download.shown` only.
    """

    filename: str
    url: str
    sha256: str | None
    size: int | None
    uploaded: datetime | None


def configured_index(settings: Settings, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the index that the user set: in the environment, else in uv's configuration files, else in pip's."""
    if settings.index_url:
        return checked_address(settings.index_url, "the package index")
    home = Path(environment.get("HOME", "/root"))
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    found = next((url for url in _in_files(config, home, environment) if url), None)
    return checked_address(found, "the package index") if found else None


def checked_address(url: str, what: str, setting: str = SETTINGS) -> str:
    """Return an address of HTTP as it is; raise ResolveError for anything else, naming `what` and its `setting`."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ResolveError(
            f"{what} is set to {shown(url)!r}, which is no address",
            remedy=f"set {setting} to http(s)://HOST/PATH/",
        )
    return url


def index_endpoint(settings: Settings) -> str:
    """Return the index to ask: the user's, else the one that `pypi-simple` knows as the default."""
    from pypi_simple import PYPI_SIMPLE_ENDPOINT  # noqa: PLC0415 - slow to import, and rarely needed

    return configured_index(settings) or PYPI_SIMPLE_ENDPOINT


def index_of(package: str, indexes: Mapping[str, Index]) -> str | None:
    """Return the URL of the recipe's index that a package (its normalized name) comes from; None: from the default."""
    tied: dict[str, str] = {canonicalize_name(name): index.url for index in indexes.values() for name in index.packages}
    return tied.get(package)


def mirrored(indexes: Mapping[str, Index], settings: Settings) -> dict[str, Index]:
    """Return a recipe's indexes with the addresses that this machine reaches them by (`ENVBUILD_INDEX_NAME_URL`)."""

    def address(name: str, index: Index) -> str:
        setting = mirror_setting(name)
        mirror = settings.index_mirrors.get(setting)
        return index.url if mirror is None else checked_address(mirror, f"the mirror of the index {name}", setting)

    return {name: index.model_copy(update={"url": address(name, index)}) for name, index in indexes.items()}


def refuse_unreachable(recipe: Recipe, settings: Settings) -> None:
    """Ask each index of a recipe for one of the packages that the stack takes from it.

    Raise ResolveError that names index, package and the setting of a mirror, before anything else is resolved.
    """
    stack = {canonicalize_name(name) for name in recipe.stack}
    for name, index in mirrored(recipe.indexes, settings).items():
        package = next((package for package in index.packages if canonicalize_name(package) in stack), None)
        if package is not None:
            try:
                project_files(canonicalize_name(package), index.url, settings, lambda _: False, patience=BRIEF)
            except ResolveError as error:
                raise ResolveError(
                    f"indexes.{name}: {package} cannot be had from {shown(index.url)}",
                    remedy=f"check the network, or set {mirror_setting(name)} to a mirror of that index",
                    evidence=(error.message, *error.evidence),
                ) from error


def find_file(
    project: str, filename: str, index: str, settings: Settings, *, patience: Patience = DEFAULT_PATIENCE
) -> IndexFile | None:
    """Return where an index (PEP 503 or PEP 691) keeps a file of a project, None if it lists no such file.

    Raise ResolveError if the index cannot be asked or does not know the project.
    """
    found = project_files(project, index, settings, lambda name: name == filename, patience=patience)
    return found[0] if found else None


def project_files(
    project: str,
    index: str,
    settings: Settings,
    wanted: Callable[[str], bool],
    *,
    patience: Patience = DEFAULT_PATIENCE,
) -> tuple[IndexFile, ...]:
    """Return the files of a project whose names are wanted; raise ResolveError as `find_file` does."""
    url = f"{index.rstrip('/')}/{project}/"
    from pypi_simple import ACCEPT_JSON_PREFERRED  # noqa: PLC0415 - as above

    headers = {"Accept": ACCEPT_JSON_PREFERRED, "Accept-Encoding": "gzip"}
    try:
        page = _page(project, wanted, get(url, settings, headers=headers, patience=patience))
    except NotFoundError:
        raise ResolveError(f"the package index {shown(index)} has no project {project}", remedy=INDEX_REMEDY) from None
    except DownloadError as error:
        raise ResolveError(
            f"the package index {shown(index)} cannot be asked for {project}",
            remedy=remedy_for(error.message, INDEX_REMEDY),
            evidence=(error.message, *error.evidence),
        ) from error
    return tuple(
        IndexFile(
            filename=file.filename,
            url=with_credentials(file.url, index),
            sha256=file.digests.get("sha256"),
            size=file.size,
            uploaded=file.upload_time,
        )
        for file in page.packages
        if wanted(file.filename)
    )


def with_credentials(url: str, index: str) -> str:
    """Give a file's URL the user and password of its index, if both are on one host and the file's has none."""
    file, base = urlsplit(url), urlsplit(index)
    user = base.netloc.rpartition("@")[0]
    if not user or (file.scheme, file.netloc) != (base.scheme, base.netloc.rpartition("@")[2]):
        return url
    return urlunsplit((file.scheme, f"{user}@{file.netloc}", file.path, file.query, file.fragment))


def _page(project: str, wanted: Callable[[str], bool], answer: Answer) -> ProjectPage:
    from pypi_simple import ProjectPage, UnsupportedRepoVersionError  # noqa: PLC0415 - as above

    try:
        if "json" in answer.content_type:
            plain = json.loads(answer.body)
            # A page may list thousands of files; reading the one that is wanted takes a hundredth of the time.
            plain["files"] = [file for file in plain["files"] if wanted(file["filename"])]
            return ProjectPage.from_json_data(plain, base_url=answer.url)
        return ProjectPage.from_html(project, answer.body, base_url=answer.url)
    except (ValueError, KeyError, TypeError, UnsupportedRepoVersionError) as error:
        raise ResolveError(
            f"{shown(answer.url)} is not a page of a package index (PEP 503, PEP 691)",
            remedy=INDEX_REMEDY,
            evidence=tuple(str(error).splitlines()[:3]),
        ) from error


def _in_files(config: Path, home: Path, environment: Mapping[str, str]) -> Iterator[str | None]:
    for path in (environment.get("UV_CONFIG_FILE"), config / "uv" / "uv.toml", Path("/etc/uv/uv.toml")):
        if path is not None and Path(path).is_file():
            yield _of_uv(Path(path))
    named = environment.get("PIP_CONFIG_FILE")
    for path in (named, config / "pip" / "pip.conf", home / ".pip" / "pip.conf", Path("/etc/pip.conf")):
        if path is not None and Path(path).is_file():
            yield _of_pip(Path(path))


def _of_uv(path: Path) -> str | None:
    remedy = "correct uv's configuration file"
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
        named = (index["url"] for index in plain.get("index", ()) if index.get("default"))
        found = next(named, None) or plain.get("index-url") or plain.get("pip", {}).get("index-url")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ResolveError(f"{path}: {error}", remedy=remedy) from None
    except (AttributeError, KeyError, TypeError):
        raise ResolveError(f"{path}: `index` or `pip` does not have the form that uv reads", remedy=remedy) from None
    return None if found is None else str(found)


def _of_pip(path: Path) -> str | None:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())
        raise ResolveError(f"{path}: {said}", remedy="correct pip's configuration file") from None
    return next(
        (parser[name]["index-url"] for name in ("install", "global") if parser.has_option(name, "index-url")), None
    )
