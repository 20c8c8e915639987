"""What may be published: the image of a recipe whose verdict is good and holds for exactly this image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.build.assembly import find_image
from builder.build.stage import find_plan
from builder.build.wheelstage import wheel_jobs
from builder.errors import NotVerifiedError, StaleLockError
from builder.lock.stage import locked_recipe
from builder.recipe.workspace import workspace_of
from builder.verify.grounds import changes_since, grounds_of
from builder.verify.record import read_verdict, recorded_verdict

if TYPE_CHECKING:
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

    Reads files and the store only. The verdict is the one that this machine has seen, never one that a file claims.
    """
    try:
        lock = locked_recipe(source)
    except StaleLockError as error:
        raise NotVerifiedError(error.message, remedy=_make(source)) from error
    path = workspace_of(source).verdict
    claimed = read_verdict(path)
    if claimed is None:
        raise NotVerifiedError(f"{source.path} was never proven", remedy=_make(source))
    if claimed.result != "good":
        look = f"see each check: envbuild status {source.path}"
        remedy = look if claimed.result == "bad" else _make(source)
        raise _refusal(source, [f"its verdict is {claimed.result}: {claimed.cause}"], remedy)
    now = grounds_of(source, lock)
    if reasons := [*changes_since(claimed, now)]:
        raise _refusal(source, reasons, _make(source))
    verdict = recorded_verdict(claimed, path, store, remedy=f"prove it here: envbuild smoke {source.path}")
    plan = find_plan(source, lock, store)
    image = find_image(plan, store) if plan is not None else None
    if plan is None or image is None:
        gone = f"the image {verdict.image_id[:19]} that was proven is not on this machine any more"
        raise _refusal(source, [gone], _make(source))
    if reasons := [*changes_since(verdict, replace(now, image_id=image.config_digest))]:
        raise _refusal(source, reasons, _make(source))
    jobs = wheel_jobs(source, lock, store)
    return ProvenImage(recipe=source.recipe, lock=lock, plan=plan, jobs=jobs, image=image, verdict=verdict)


def _refusal(source: RecipeFile, reasons: list[str], remedy: str) -> NotVerifiedError:
    first, *others = reasons
    return NotVerifiedError(f"{source.path} is not published: {first}", remedy=remedy, evidence=tuple(others))


def _make(source: RecipeFile) -> str:
    return f"prove it: envbuild make {source.path}"
