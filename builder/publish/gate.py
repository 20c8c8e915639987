"""What may be published: the image of a recipe whose verdict is good and holds for exactly this image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.build.assembly import find_image
from builder.build.stage import find_plan
from builder.build.wheelstage import wheel_jobs
from builder.errors import NotVerifiedError, StaleLockError
from builder.lock.stage import locked_recipe
from builder.recipe.workspace import workspace_of
from builder.verify.record import read_verdict
from builder.verify.smoke import served_digest, suite_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.build.assembly import ImagePlan
    from builder.build.image import Image
    from builder.build.wheelfile import WheelInput
    from builder.build.wheels import WheelJob
    from builder.lock.model import Lock
    from builder.recipe.model import Recipe
    from builder.recipe.source import RecipeFile
    from builder.store import Store
    from builder.verify.verdict import Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class ProvenImage:
    """An image in the store, what it was made of, and the good verdict on it."""

    recipe: Recipe
    lock: Lock
    plan: ImagePlan
    jobs: tuple[WheelJob, ...]
    image: Image
    verdict: Verdict

    @property
    def digest(self) -> str:
        """The digest of the manifest: what is published."""
        return self.image.manifest_digest

    @property
    def wheels(self) -> tuple[WheelInput, ...]:
        """The wheels in the image, locked and compiled."""
        return self.plan.wheels


def proven_image(source: RecipeFile, store: Store) -> ProvenImage:
    """Return the image of a recipe with its proof; raise NotVerifiedError, with the reason, if anything is not proven.

    Reads files and the store only.
    """
    try:
        lock = locked_recipe(source)
    except StaleLockError as error:
        raise NotVerifiedError(error.message, remedy=_make(source)) from error
    verdict = read_verdict(workspace_of(source).verdict)
    if verdict is None:
        raise NotVerifiedError(f"{source.path} was never proven", remedy=_make(source))
    remedy = f"see each check: envbuild status {source.path}" if verdict.result == "bad" else _make(source)
    for reason in _reasons(source, lock, verdict):
        raise NotVerifiedError(f"{source.path} is not published: {reason}", remedy=remedy)
    plan = find_plan(source, lock, store)
    image = find_image(plan, store) if plan is not None else None
    if plan is None or image is None:
        raise NotVerifiedError(
            f"{source.path} is not published: the image {verdict.image_id[:19]} that was proven is not on this machine",
            remedy=_make(source),
        )
    if image.config_digest != verdict.image_id:
        raise NotVerifiedError(
            f"{source.path} is not published: the image is {image.config_digest[:19]} now, "
            f"the verdict is on {verdict.image_id[:19]}",
            remedy=_make(source),
        )
    jobs = wheel_jobs(source, lock, store)
    return ProvenImage(recipe=source.recipe, lock=lock, plan=plan, jobs=jobs, image=image, verdict=verdict)


def _reasons(source: RecipeFile, lock: Lock, verdict: Verdict) -> Iterator[str]:
    recipe = source.recipe
    if verdict.result != "good":
        yield f"its verdict is {verdict.result}: {verdict.cause}"
    if verdict.recipe != recipe.name:
        yield f"its verdict is on {verdict.recipe}"
    if verdict.lock_digest != lock.digest:
        yield "its lock has changed since it was proven"
    if verdict.suite_digest != suite_digest():
        yield "the checks have changed since it was proven"
    if verdict.served != served_digest(recipe):
        yield "its `serve` has changed since it was proven"
    missing = [level for level in recipe.smoke.require if level not in verdict.required]
    if missing:
        yield f"it requires {', '.join(missing)} since it was proven"
    unsaid = [rule for rule, reason in verdict.waived.items() if recipe.waive.get(rule) != reason]
    if unsaid:
        yield f"it does not waive {', '.join(unsaid)} any more, for the reason with which it was proven"


def _make(source: RecipeFile) -> str:
    return f"prove it: envbuild make {source.path}"
