"""Tags that move: only to newer images, whoever publishes at the same time."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.publish.envelope import BUNDLE_TYPE
from builder.publish.statements import TEST_RESULT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.publish.shelf import RegistryShelf
    from builder.registry.content import Manifest

LOCKED = "dev.envbuild.locked"
AS_OF = "dev.envbuild.as-of"
PROVEN = "dev.envbuild.proven"
MARK = 8  # hexadecimal digits of a digest
READERS = 8  # images whose age is read at a time
Moved = Literal["moved", "current", "kept", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Age:
    """How new an image is: the date of its Debian packages, the recipe's `as-of`, the proof's time (ISO 8601, UTC)."""

    locked: str
    as_of: str
    proven: str

    def annotations(self) -> dict[str, str]:
        """Return it as notes on what is attached to the image."""
        return {LOCKED: self.locked, AS_OF: self.as_of, PROVEN: self.proven}


def age_in(annotations: Mapping[str, str]) -> Age | None:
    """Return the age that notes tell, if they do."""
    if not {LOCKED, PROVEN} <= annotations.keys():
        return None
    return Age(locked=annotations[LOCKED], as_of=annotations.get(AS_OF, ""), proven=annotations[PROVEN])


def companion(tag: str, digest: str) -> str:
    """Return the tag that stays with one image where `tag` moves on, such as `small-5aaf4645`."""
    return f"{tag}-{digest.removeprefix('sha256:')[:MARK]}"


def move_alias(shelf: RegistryShelf, tag: str, image: Manifest, age: Age, *, back: bool) -> Moved:
    """Let a tag name an image, if it is the newest of those that were ever published under it, or `back` says so.

    "kept" says that a newer one was, "unknown" that the tag names an image of unknown age. A registry cannot compare
    and swap, so everyone puts the image's companion tag first, and ends only when a look at all companions after the
    own last write finds none newer: the last of all writers has seen what the others published.
    """
    client, repository = shelf.client, shelf.repository
    reference, own = repository.at(tag), repository.at(companion(tag, image.digest))
    if client.find(own) is None:
        client.put_manifest(own, image.data, image.media_type)
    found = client.find(reference)
    if found is not None and found.digest == image.digest:
        return "current"
    if back:
        client.put_manifest(reference, image.data, image.media_type)
        return "moved"
    if found is not None and age_of_published(shelf, found.digest) is None:
        return "unknown"
    written = None
    while (newest := _newest(shelf, tag, image, age)) != written:
        if written is None and newest != image:
            return "kept"
        client.put_manifest(reference, newest.data, newest.media_type)
        written = newest
    return "moved" if written == image else "kept"


def _newest(shelf: RegistryShelf, tag: str, image: Manifest, age: Age) -> Manifest:
    """Return the newest image that has a companion of this tag."""
    companions = re.compile(rf"{re.escape(tag)}-[0-9a-f]{{{MARK}}}")

    def read(name: str) -> tuple[Age, Manifest] | None:
        manifest = shelf.find(name)
        if manifest is None or name != companion(tag, manifest.digest) or manifest.digest == image.digest:
            return None
        told = age_of_published(shelf, manifest.digest)
        return None if told is None else (told, manifest)

    names = [name for name in shelf.client.tags(shelf.repository) if companions.fullmatch(name)]
    with ThreadPoolExecutor(READERS) as pool:
        others = [item for item in pool.map(read, names) if item is not None]
    return max([(age, image), *others], key=lambda item: item[0])[1]


def age_of_published(shelf: RegistryShelf, digest: str) -> Age | None:
    """Return how new a published image is: its newest proof counts."""
    listed = [item for item in shelf.referrers(digest) if item.artifact_type == BUNDLE_TYPE]
    ages = [age_in(item.annotations) for item in listed if TEST_RESULT in item.annotations.values()]
    return max((age for age in ages if age is not None), default=None)
