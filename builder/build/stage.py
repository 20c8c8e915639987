"""Lock -> Dockerfiles, wheels and image, as one stretch of the road."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.build.assembly import build_image, built_image, plan_image
from builder.build.base import base_identity
from builder.build.compression import ZSTD, ZSTD_ENGINE
from builder.build.foundation import base_of, rootfs_of, toolchain_of
from builder.build.render import render_dockerfiles, stale_dockerfiles, write_dockerfiles
from builder.build.uses import note_use, remember_workspace
from builder.build.wheels import built_wheel
from builder.build.wheelstage import fetch_locked, make_wheels, wheel_jobs
from builder.errors import StaleLockError
from builder.recipe.workspace import workspace_of
from builder.store import mended
from builder.tools import show_lines

if TYPE_CHECKING:
    from builder.build.assembly import BuiltImage, ImagePlan
    from builder.build.base import RootFilesystem
    from builder.build.wheels import BuiltWheel, WheelJob
    from builder.console import Console
    from builder.lock.model import Lock
    from builder.recipe.source import RecipeFile
    from builder.store import Store
    from builder.tools import Tools


def render_recipe(source: RecipeFile, locked: Lock, console: Console) -> tuple[str, ...]:
    """Write the Dockerfiles of a locked recipe and return the names of those that changed."""
    folder = workspace_of(source).dockerfiles
    changed = write_dockerfiles(render_dockerfiles(source.recipe, locked), folder)
    if changed:
        console.say(f"  rendered {', '.join(changed)} in {folder}")
    else:
        console.current("Dockerfiles")
    return changed


def check_rendered(source: RecipeFile, locked: Lock) -> None:
    """Raise StaleLockError if the committed Dockerfiles are not what the recipe and the lock render to."""
    folder = workspace_of(source).dockerfiles
    stale = stale_dockerfiles(render_dockerfiles(source.recipe, locked), folder)
    if stale:
        raise StaleLockError(
            f"{folder}: not what the recipe and its lock render to: {', '.join(stale)}",
            remedy=f"run `envbuild render {source.path}` and commit the result",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Materials:
    """What an image is made of, all in the store: the base, the compiled wheels, and the locked wheels.

    `rootfs` is None where the base is an image of a registry.
    """

    rootfs: RootFilesystem | None
    built: tuple[BuiltWheel, ...]
    jobs: tuple[WheelJob, ...]


def gather_materials(source: RecipeFile, locked: Lock, tools: Tools) -> Materials:
    """Bring everything that the image is made of into the store, without assembling it."""
    return mended(tools.store, lambda: _gather(source, locked, tools), tools.console.warn)


def _gather(source: RecipeFile, locked: Lock, tools: Tools) -> Materials:
    jobs = wheel_jobs(source, locked, tools.store)
    built = tuple(made.wheel for made in make_wheels(jobs, source, locked, tools))
    rootfs = rootfs_of(locked, tools)
    fetch_locked(source, locked, tools)
    return Materials(rootfs=rootfs, built=built, jobs=jobs)


def build_recipe(source: RecipeFile, locked: Lock, tools: Tools) -> BuiltImage:
    """Compile what must be compiled, assemble the image and load it into the engine.

    A file of the store that turns out to be damaged is fetched or made again. Two processes do the work once.
    """
    remember_workspace(workspace_of(source).root, tools.store)
    return mended(tools.store, lambda: _build(source, locked, tools), tools.console.warn)


def _build(source: RecipeFile, locked: Lock, tools: Tools) -> BuiltImage:
    jobs = wheel_jobs(source, locked, tools.store)
    needs = (toolchain_of(source, locked), base_identity(locked), *(job.key for job in jobs))
    note_use(locked.digest, needs, tools.store, more=True)
    built = tuple(made.wheel for made in make_wheels(jobs, source, locked, tools))
    plan = plan_image(source.recipe, locked, base_identity(locked), built, tools.store, tag=source.tag)
    with tools.store.exclusive(f"image-{plan.key}"):
        image = built_image(plan, tools.engine, tools.store)
        if image is None:
            image = _assemble(plan, source, locked, tools)
        else:
            tools.console.current(f"image {image.reference}")
    note_use(locked.digest, (*needs, plan.key), tools.store)
    return image


def _assemble(plan: ImagePlan, source: RecipeFile, locked: Lock, tools: Tools) -> BuiltImage:
    _warn_of_zstd(plan, tools)
    base = base_of(locked, tools, plan.terms.codec)
    fetch_locked(source, locked, tools)
    with tools.console.step(f"assemble {plan.reference}") as step:
        image = build_image(
            plan,
            base,
            engine=tools.engine,
            store=tools.store,
            on_progress=show_lines(step, tools.console),
            share=tools.share,
        )
        step.end(image.image_id[:19])
    return image


def _warn_of_zstd(plan: ImagePlan, tools: Tools) -> None:
    version = tools.engine.facts().version
    major = version.partition(".")[0]
    if plan.terms.codec is ZSTD and major.isdigit() and int(major) < ZSTD_ENGINE:
        tools.console.warn(
            f"Engine {version} gets this image unpacked from here, but cannot pull it: layers in zstd need Engine "
            f"{ZSTD_ENGINE}.0 or newer (`compression: gzip` serves all)"
        )


def find_plan(source: RecipeFile, locked: Lock, store: Store) -> ImagePlan | None:
    """Return the plan of an image whose wheels are all in the store, else None; nothing is fetched or compiled."""
    built = [built_wheel(job, store) for job in wheel_jobs(source, locked, store)]
    done = tuple(wheel for wheel in built if wheel is not None)
    if len(done) < len(built) or not all(store.has(wheel.sha256) for wheel in locked.wheels):
        return None
    return plan_image(source.recipe, locked, base_identity(locked), done, store, tag=source.tag)


def known_image_id(source: RecipeFile, locked: Lock, store: Store) -> str | None:
    """Return the id of the image that a recipe has now, None where this machine has not made it."""
    plan = find_plan(source, locked, store)
    record = store.result("image", plan.key) if plan is not None else None
    return str(record["image_id"]) if record is not None else None
