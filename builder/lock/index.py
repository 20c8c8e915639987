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

from builder.download import DEFAULT_PATIENCE, DownloadError, NotFoundError, get, shown
from builder.errors import ResolveError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pypi_simple import ProjectPage

    from builder.download import Answer, Patience
    from builder.recipe.model import Index
    from builder.settings import Settings

INDEX_REMEDY = "check the network and the index that ENVBUILD_INDEX_URL, UV_DEFAULT_INDEX or PIP_INDEX_URL names"


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexFile:
    """Where an index keeps a file. `url` may carry the user's password: show it through `download.shown` only."""

    url: str
    sha256: str | None


def configured_index(settings: Settings, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the index that the user set: in the environment, else in uv's configuration files, else in pip's."""
    if settings.index_url:
        return settings.index_url
    home = Path(environment.get("HOME", "/root"))
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    return next((url for url in _in_files(config, home, environment) if url), None)


def index_endpoint(settings: Settings) -> str:
    """Return the index to ask: the user's, else the one that `pypi-simple` knows as the default."""
    from pypi_simple import PYPI_SIMPLE_ENDPOINT  # noqa: PLC0415 - slow to import, and rarely needed

    return configured_index(settings) or PYPI_SIMPLE_ENDPOINT


def index_of(package: str, indexes: Mapping[str, Index]) -> str | None:
    """Return the URL of the recipe's index that a package (its normalized name) comes from; None: from the default."""
    tied: dict[str, str] = {canonicalize_name(name): index.url for index in indexes.values() for name in index.packages}
    return tied.get(package)


def find_file(
    project: str, filename: str, index: str, settings: Settings, *, patience: Patience = DEFAULT_PATIENCE
) -> IndexFile | None:
    """Return where an index (PEP 503 or PEP 691) keeps a file of a project, None if it lists no such file.

    Raise ResolveError if the index cannot be asked or does not know the project.
    """
    url = f"{index.rstrip('/')}/{project}/"
    from pypi_simple import ACCEPT_JSON_PREFERRED  # noqa: PLC0415 - as above

    headers = {"Accept": ACCEPT_JSON_PREFERRED, "Accept-Encoding": "gzip"}
    try:
        page = _page(project, filename, get(url, settings, headers=headers, patience=patience))
    except NotFoundError:
        raise ResolveError(f"the package index {shown(index)} has no project {project}", remedy=INDEX_REMEDY) from None
    except DownloadError as error:
        raise ResolveError(
            f"the package index {shown(index)} cannot be asked for {project}",
            remedy=INDEX_REMEDY,
            evidence=(error.message, *error.evidence),
        ) from error
    for file in page.packages:
        if file.filename == filename:
            return IndexFile(url=with_credentials(file.url, index), sha256=file.digests.get("sha256"))
    return None


def with_credentials(url: str, index: str) -> str:
    """Give a file's URL the user and password of its index, if both are on one host and the file's has none."""
    file, base = urlsplit(url), urlsplit(index)
    user = base.netloc.rpartition("@")[0]
    if not user or (file.scheme, file.netloc) != (base.scheme, base.netloc.rpartition("@")[2]):
        return url
    return urlunsplit((file.scheme, f"{user}@{file.netloc}", file.path, file.query, file.fragment))


def _page(project: str, filename: str, answer: Answer) -> ProjectPage:
    from pypi_simple import ProjectPage, UnsupportedRepoVersionError  # noqa: PLC0415 - as above

    try:
        if "json" in answer.content_type:
            plain = json.loads(answer.body)
            # A page may list thousands of files; reading the one that is wanted takes a hundredth of the time.
            plain["files"] = [file for file in plain["files"] if file["filename"] == filename]
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
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ResolveError(f"{path}: {error}", remedy="correct uv's configuration file") from None
    named = (index["url"] for index in plain.get("index", ()) if index.get("default"))
    found = next(named, None) or plain.get("index-url") or plain.get("pip", {}).get("index-url")
    return None if found is None else str(found)


def _of_pip(path: Path) -> str | None:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except configparser.Error as error:
        raise ResolveError(f"{path}: {error}", remedy="correct pip's configuration file") from None
    return next(
        (parser[name]["index-url"] for name in ("install", "global") if parser.has_option(name, "index-url")), None
    )
