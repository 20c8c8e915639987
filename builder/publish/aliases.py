"""Tags that move: only to newer images, whoever publishes at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.errors import RegistryError
from builder.publish.bundles import BUNDLE_TYPE
from builder.publish.statements import TEST_RESULT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.publish.shelf import RegistryShelf
    from builder.registry.content import Manifest

LOCKED = "dev.envbuild.locked"
AS_OF = "dev.envbuild.as-of"
PROVEN = "dev.envbuild.proven"
ATTEMPTS = 20  # rounds of publishers that move the same tag
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


def move_alias(shelf: RegistryShelf, tag: str, image: Manifest, age: Age, *, back: bool) -> Moved:
    """Let a tag name an image, unless it names a newer one ("kept") or one of unknown age ("unknown") and not `back`.

    A registry cannot compare and swap, so the tag is looked at again after it was written: of publishers at the same
    time the newest image stays.
    """
    client, repository, written = shelf.client, shelf.repository, False
    reference = repository.at(tag)
    for _ in range(ATTEMPTS):
        found = client.find(reference)
        if found is not None and found.digest == image.digest:
            return "moved" if written else "current"
        if found is not None and not (back and not written):
            theirs = age_of_published(shelf, found.digest)
            if theirs is None:
                return "unknown"
            if theirs > age:
                return "kept"
        client.put_manifest(reference, image.data, image.media_type)
        written = True
    raise RegistryError(
        f"{repository.registry} does not keep the tag {tag} of {repository.name}",
        remedy="other publishers move it all the time: run the same command again",
    )


def age_of_published(shelf: RegistryShelf, digest: str) -> Age | None:
    """Return how new a published image is: its newest proof counts."""
    listed = [item for item in shelf.referrers(digest) if item.artifact_type == BUNDLE_TYPE]
    ages = [age_in(item.annotations) for item in listed if TEST_RESULT in item.annotations.values()]
    return max((age for age in ages if age is not None), default=None)
