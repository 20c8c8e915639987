"""What a verdict stands on, and what of it has changed since: the one place that says whether a verdict still holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import builder.verify
from builder.document import key_of, sha256_file, tree_digest
from builder.lock.question import changed_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.lock.model import Lock
    from builder.recipe.source import RecipeFile
    from builder.verify.verdict import Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Grounds:
    """What a proof depends on: the whole recipe, the digests of the folders it builds from, lock, checks, image.

    `lock_digest` and `image_id` are None where they are not known (yet).
    """

    question: Mapping[str, Any]
    sources: Mapping[str, str]
    lock_digest: str | None
    suite_digest: str
    image_id: str | None = None

    @property
    def key(self) -> str:
        """The key of all of it."""
        return key_of(asdict(self))

    def proof_key(self, waived: Mapping[str, str]) -> str:
        """Return the key that a proof is recorded under, with the rules of preflight that were waived."""
        return key_of([self.key, dict(waived)])


@cache
def suite_digest() -> str:
    """Return the digest of the checks themselves: a changed check makes every older verdict stale."""
    checks = Path(builder.verify.__file__).parent
    ground = (checks.parent / "elf.py", checks.parent / "fatbin.py", checks.parent / "lock" / "needs.py")
    return key_of([tree_digest(checks), *(sha256_file(path) for path in ground)])


def grounds_of(source: RecipeFile, lock: Lock | None, image_id: str | None = None) -> Grounds:
    """Return what a proof of a recipe depends on now; reads its folders."""
    folders = {package.path for package in source.recipe.stack.values() if package.path is not None}
    return Grounds(
        question=source.recipe.to_plain(),
        sources={path: tree_digest(source.folder / path) for path in sorted(folders)},
        lock_digest=lock.digest if lock else None,
        suite_digest=suite_digest(),
        image_id=image_id,
    )


def grounds_in(verdict: Verdict) -> Grounds:
    """Return what a verdict depended on."""
    return Grounds(
        question=verdict.question,
        sources=verdict.sources,
        lock_digest=verdict.lock_digest,
        suite_digest=verdict.suite_digest,
        image_id=verdict.image_id,
    )


def changes_since(verdict: Verdict, now: Grounds) -> Iterator[str]:
    """Yield a sentence for every ground of a verdict that is another one now; none: it still holds."""
    then = grounds_in(verdict)
    if then.suite_digest != now.suite_digest:
        yield "the checks have changed since it was proven"
        if not then.question:  # made by checks that did not write it down
            return
    if changed := changed_fields(then.question, now.question):
        yield f"the recipe has changed since it was proven: {', '.join(changed)}"
    if folders := [path for path in sorted({*then.sources, *now.sources}) if _differs(path, then, now)]:
        yield f"the files in {', '.join(folders)} have changed since it was proven"
    if then.lock_digest != now.lock_digest:
        yield "its lock has changed since it was proven"
    if now.image_id not in {None, then.image_id}:
        yield f"its image is {str(now.image_id)[:19]} now, the verdict is on {str(then.image_id)[:19]}"


def _differs(path: str, then: Grounds, now: Grounds) -> bool:
    return then.sources.get(path) != now.sources.get(path)
