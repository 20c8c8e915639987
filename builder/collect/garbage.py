"""Roots -> what is not reachable from them: results, files, unfinished work, logs, old images; removes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.build.layers import base_tag
from builder.build.uses import PUBLISHED, USE, WORKSPACE
from builder.document import canonical_json, hashes_in
from builder.lock.git import repository_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from builder.collect.roots import Roots
    from builder.engine import LocalImage
    from builder.store import Store

Result = tuple[str, str]
UNFINISHED = "unfinished"
LOGS = "log"
FETCHED = "fetched"
GIT = "git repository"
VERDICT = "verdict"  # stays as long as its lock; for that, an image that has lost its tag need not be there


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A file or folder to remove; `kind` is what people call it, `size` is in bytes."""

    kind: str
    path: Path
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OldImage:
    """An image of the engine that this store made and that no lock needs; removed by its tags, or else by its id."""

    names: tuple[str, ...]
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Garbage:
    """Everything that may go. The size of an image counts layers that others may share, so it is not in `size`."""

    results: tuple[Result, ...]
    pieces: tuple[Piece, ...]
    images: tuple[OldImage, ...]

    @property
    def count(self) -> int:
        """How many things may go."""
        return len(self.results) + len(self.pieces) + len(self.images)

    @property
    def size(self) -> int:
        """The bytes that removing frees in the store."""
        return sum(piece.size for piece in self.pieces)

    @property
    def kinds(self) -> dict[str, tuple[int, int]]:
        """How many pieces there are of each kind, and their bytes together."""
        found: dict[str, tuple[int, int]] = {}
        for piece in self.pieces:
            count, size = found.get(piece.kind, (0, 0))
            found[piece.kind] = (count + 1, size + piece.size)
        return dict(sorted(found.items(), key=lambda item: -item[1][1]))

    def to_plain(self) -> dict[str, Any]:
        """Return the counts and sizes as JSON values; sizes are in bytes."""
        return {
            "bytes": self.size,
            "files": len(self.pieces),
            "records": len(self.results),
            "kinds": {kind: {"count": count, "bytes": size} for kind, (count, size) in self.kinds.items()},
            "images": [name for image in self.images for name in image.names],
        }


def find_unreachable(roots: Roots, store: Store, images: Iterable[LocalImage] = ()) -> Garbage:
    """Return what of the store and of the engine's `images` no root needs.

    A result is reached by its key, a file by its sha256, wherever a lock or another result that is reached mentions
    them: what is not understood is kept.
    """
    values = {(kind, key): store.result(kind, key) or {} for kind, key in store.results()}
    mentions = {result: hashes_in(canonical_json(value)) for result, value in values.items()}
    kept, needed = _reach(roots, values, mentions)
    dead = tuple(sorted(result for result in values if result not in kept))
    kinds = {sha256: kind for kind, key in dead for sha256 in mentions[kind, key]}
    pieces = (
        *_files(store, needed, kinds),
        *_repositories(store, roots),
        *_unfinished(store, needed),
        *_logs(store, needed),
    )
    return Garbage(results=dead, pieces=tuple(pieces), images=tuple(_old_images(images, values, kept)))


def _reach(
    roots: Roots, values: dict[Result, dict[str, Any]], mentions: dict[Result, frozenset[str]]
) -> tuple[set[Result], set[str]]:
    by_key: dict[str, list[Result]] = {}
    for kind, key in values:
        by_key.setdefault(key, []).append((kind, key))
    kept = {result for result, value in values.items() if _is_root(result, value, roots)}
    needed: set[str] = set(roots.mentioned)
    waiting = [*roots.mentioned, *(sha256 for result in kept for sha256 in mentions[result])]
    while waiting:
        sha256 = waiting.pop()
        needed.add(sha256)
        for result in by_key.get(sha256, ()):
            if result not in kept and result[0] not in {PUBLISHED, USE, WORKSPACE}:
                kept.add(result)
                waiting += mentions[result]
    return kept, needed


def _is_root(result: Result, value: dict[str, Any], roots: Roots) -> bool:
    kind, key = result
    return (
        kind == PUBLISHED
        or (kind == USE and key in roots.locks)
        or (kind == WORKSPACE and key in roots.workspaces)
        or value.get("lock_digest") in roots.locks
    )


def _files(store: Store, needed: set[str], kinds: dict[str, str]) -> Iterator[Piece]:
    for path in sorted((store.root / "files").glob("*/*")):
        if path.name not in needed:
            kind = UNFINISHED if path.name.startswith(".") else kinds.get(path.name, FETCHED)
            yield Piece(kind=kind, path=path, size=path.stat().st_size)


def _repositories(store: Store, roots: Roots) -> Iterator[Piece]:
    wanted = {repository_of(url, store, history=history) for url in roots.repositories for history in (True, False)}
    for path in sorted((store.root / "git").glob("*")):
        if path not in wanted:
            yield Piece(kind=GIT, path=path, size=_size(path))


def _unfinished(store: Store, needed: set[str]) -> Iterator[Piece]:
    """Yield what killed processes left; downloads and compilations that are still needed stay, to be continued."""
    for path in sorted((store.root / "builds").glob("*")):
        if path.name not in needed:
            yield Piece(kind=UNFINISHED, path=path, size=_size(path))
    for path in sorted((store.root / "tmp").iterdir()):
        if path.name.removeprefix("part-") not in needed:
            yield Piece(kind=UNFINISHED, path=path, size=_size(path))
    for path in sorted((store.root / "results").glob("*/.*")):
        yield Piece(kind=UNFINISHED, path=path, size=_size(path))


def _logs(store: Store, needed: set[str]) -> Iterator[Piece]:
    """Yield the logs whose name ends with the begin of a key that is not needed."""
    begins = {sha256[:16] for sha256 in needed}
    for path in sorted((store.root / "logs").rglob("*")):
        if path.is_file() and path.stem.rpartition("-")[2] not in begins:
            yield Piece(kind=LOGS, path=path, size=_size(path))


def _old_images(
    images: Iterable[LocalImage], values: dict[Result, dict[str, Any]], kept: set[Result]
) -> Iterator[OldImage]:
    """Yield images that this store's records made, that no kept job makes, and that no container uses."""
    made = {name for result, value in values.items() if result not in kept for name in _names(value)}
    wanted = {name for result, value in values.items() if result in kept for name in _names(value)}
    needed = {name for result in kept if result[0] != VERDICT for name in _names(values[result])}
    for image in images:
        names = {image.image_id, *image.references}
        foreign = [name for name in image.references if not name.startswith("envbuild/")]
        keeping = wanted if image.references else needed
        if names & made and not names & keeping and not image.in_use and not foreign:
            yield OldImage(names=image.references or (image.image_id,), size=image.size)


def _names(value: dict[str, Any]) -> Iterator[str]:
    """Yield what the engine may call an image that a record is about: its id, or the tag of a base with this layer."""
    if "image_id" in value:
        yield value["image_id"]
    if "diff_id" in value:
        yield base_tag(value["diff_id"])


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.lstat().st_size for file in files if not file.is_dir())
