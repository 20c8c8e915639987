"""A package from its source distribution: found in the index, fetched by hash, unpacked and patched."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from packaging.utils import InvalidSdistFilename, parse_sdist_filename
from packaging.version import Version

from builder.download import Download, fetch_all, shown
from builder.errors import ResolveError
from builder.lock.archive import read_sdist
from builder.lock.fixes import proven_fixes
from builder.lock.index import index_endpoint, index_of, mirrored, project_files
from builder.lock.model import LockedSdist
from builder.lock.uv import end_of_day

if TYPE_CHECKING:
    from builder.lock.index import IndexFile
    from builder.lock.tree import SourceFile
    from builder.lock.wish import Wish


def locked_sdist(wish: Wish) -> LockedSdist:
    """Return the sdist of a package, it and its canonical archive in the store.

    Raise ResolveError where the index has none, or other bytes than it says, a patch does not fit, or a fix is missing.
    """
    file = _in_index(wish)
    sha256 = str(file.sha256)
    download = Download(url=file.url, sha256=sha256, size=file.size, label=file.filename)
    fetch_all([download], wish.store, wish.settings)
    tree = _patched(wish, sha256, file.filename)
    return LockedSdist(
        name=wish.project,
        version=str(wish.package.version),
        filename=file.filename,
        sha256=sha256,
        size=wish.store.path(sha256).stat().st_size,
        patches=wish.patches,
        fixes=proven_fixes(wish, tree),
        archive=wish.keep(tree),
    )


def archive_sdist(wish: Wish, sha256: str, filename: str) -> str:
    """Make the canonical archive of an sdist in the store and return the archive's sha256."""
    return wish.keep(_patched(wish, sha256, filename))


def _patched(wish: Wish, sha256: str, filename: str) -> dict[str, SourceFile]:
    return wish.patched(read_sdist(wish.store.sound(sha256), f"{wish.place}: {filename}"))


def _in_index(wish: Wish) -> IndexFile:
    """Return the sdist of the pinned version; raise ResolveError if there is none, or none that can be locked."""
    settings, as_of, version = wish.settings, wish.recipe.as_of, str(wish.package.version)
    index = index_of(wish.project, mirrored(wish.recipe.indexes, settings)) or index_endpoint(settings)
    found = project_files(wish.project, index, settings, lambda name: _is_sdist(name, wish.project, version))
    if not found:
        raise ResolveError(
            f"{wish.place}: the index {shown(index)} has no source distribution (.tar.gz) of {wish.project} {version}",
            remedy="give the `git` repository and `commit` instead, or leave out `build` to take a wheel",
        )
    file = found[0]
    if file.sha256 is None:
        raise ResolveError(
            f"{wish.place}: the index {shown(index)} gives no sha256 for {file.filename}",
            remedy="use an index that does: without it the file cannot be locked",
        )
    if as_of and file.uploaded and file.uploaded >= datetime.fromisoformat(end_of_day(as_of)):
        raise ResolveError(
            f"{wish.place}: {file.filename} was published on {file.uploaded:%Y-%m-%d}, after `as-of: {as_of}`",
            remedy="move `as-of`, or pin an older version",
        )
    return file


def _is_sdist(filename: str, project: str, version: str) -> bool:
    try:
        name, found = parse_sdist_filename(filename)
    except InvalidSdistFilename:
        return False
    return filename.endswith(".tar.gz") and name == project and found == Version(version)
