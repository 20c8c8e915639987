"""Tags that move: only to newer images, whoever publishes at the same time."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.publish.envelope import BUNDLE_TYPE
from builder.publish.statements import TEST_RESULT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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


def move_aliases(
    shelf: RegistryShelf, tags: Sequence[str], image: Manifest, age: Age, *, back: bool
) -> dict[str, Moved]:
    """Let tags name an image, each if it is the newest of those ever published under that tag, or `back` says so.

    "kept" says that a newer one was, "unknown" that the tag names an image of unknown age. A registry cannot compare
    and swap, so everyone puts the image's companion tags first, and ends only when a look at all companions after the
    own last write finds none newer: the last of all writers has seen what the others published. A look reads the age
    of each image once, whatever the number of its tags.
    """
    moved = _moved_at_once(shelf, tags, image, back=back)
    written: dict[str, Manifest | None] = {tag: None for tag in tags if tag not in moved}
    while written:
        newest = _newest(shelf, tuple(written), image, age)
        for tag, last in tuple(written.items()):
            if newest[tag] == last or (last is None and newest[tag] != image):
                moved[tag] = "moved" if last == image else "kept"
                del written[tag]
            else:
                shelf.client.put_manifest(shelf.repository.at(tag), newest[tag].data, newest[tag].media_type)
                written[tag] = newest[tag]
    return {tag: moved[tag] for tag in tags}


def _moved_at_once(shelf: RegistryShelf, tags: Sequence[str], image: Manifest, *, back: bool) -> dict[str, Moved]:
    """Put the companions of tags, and return what becomes of those tags that no look at other images decides."""
    client, repository = shelf.client, shelf.repository
    for own in (repository.at(companion(tag, image.digest)) for tag in tags):
        if client.find(own) is None:
            client.put_manifest(own, image.data, image.media_type)
    found = {tag: client.find(repository.at(tag)) for tag in tags}
    named = {each.digest for each in found.values() if each is not None and each.digest != image.digest}
    ages = _ages(shelf, set() if back else named)
    moved: dict[str, Moved] = {}
    for tag, each in found.items():
        if each is not None and each.digest == image.digest:
            moved[tag] = "current"
        elif back:
            client.put_manifest(repository.at(tag), image.data, image.media_type)
            moved[tag] = "moved"
        elif each is not None and ages[each.digest] is None:
            moved[tag] = "unknown"
    return moved


def _newest(shelf: RegistryShelf, tags: Iterable[str], image: Manifest, age: Age) -> dict[str, Manifest]:
    """Return the newest image that has a companion of each of these tags."""
    every = tuple(shelf.client.tags(shelf.repository))
    companions = {tag: [name for name in every if _is_companion(name, tag)] for tag in tags}
    names = sorted({name for each in companions.values() for name in each})
    with ThreadPoolExecutor(READERS) as pool:
        manifests = dict(zip(names, pool.map(shelf.find, names), strict=True))
    ages = _ages(shelf, {manifest.digest for manifest in manifests.values() if manifest is not None} - {image.digest})

    def newest(tag: str) -> Manifest:
        candidates = [(age, image)]
        for name in companions[tag]:
            manifest = manifests[name]
            if manifest is not None and name == companion(tag, manifest.digest):
                told = ages.get(manifest.digest)
                candidates += [(told, manifest)] if told is not None else []
        return max(candidates, key=lambda item: item[0])[1]

    return {tag: newest(tag) for tag in tags}


def _is_companion(name: str, tag: str) -> bool:
    """Say whether a tag is of the form of those that stay with an image where `tag` moves on."""
    return re.fullmatch(rf"{re.escape(tag)}-[0-9a-f]{{{MARK}}}", name) is not None


def _ages(shelf: RegistryShelf, digests: Iterable[str]) -> dict[str, Age | None]:
    """Return how new published images are, several read at a time."""
    wanted = sorted(digests)
    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip(wanted, pool.map(lambda digest: age_of_published(shelf, digest), wanted), strict=True))


def age_of_published(shelf: RegistryShelf, digest: str) -> Age | None:
    """Return how new a published image is: its newest proof counts."""
    listed = [item for item in shelf.referrers(digest) if item.artifact_type == BUNDLE_TYPE]
    ages = [age_in(item.annotations) for item in listed if TEST_RESULT in item.annotations.values()]
    return max((age for age in ages if age is not None), default=None)
