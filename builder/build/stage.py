"""Lock -> Dockerfiles, wheels and image, as one stretch of the road."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.build.assembly import build_image, built_image, plan_image
from builder.build.base import base_identity, bootstrap_base, debs_folder, find_base
from builder.build.compression import COMPRESSIONS, ZSTD, ZSTD_ENGINE
from builder.build.image import chain_ids
from builder.build.layers import image_layers, load_base, make_base_layer
from builder.build.render import render_dockerfiles, stale_dockerfiles, write_dockerfiles
from builder.build.toolchain import build_toolchain, has_toolchain, toolchain_key, toolchain_tag
from builder.build.uses import note_use, remember_workspace
from builder.build.wheels import SHARED, build_wheel, built_wheel, plan_wheels
from builder.errors import StaleLockError
from builder.lock.debian import fetch_debs
from builder.lock.image_base import fetch_image
from builder.lock.sources import restore_source
from builder.lock.wheels import fetch_wheels
from builder.lock.wish import wishes_of
from builder.recipe.workspace import workspace_of
from builder.store import mended
from builder.tools import show_lines, show_progress

if TYPE_CHECKING:
    from builder.build.assembly import BuiltImage, ImagePlan
    from builder.build.base import RootFilesystem
    from builder.build.compression import Compression
    from builder.build.image import Layer
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
    built = _compile(jobs, source, locked, tools)
    rootfs = _rootfs(locked, tools)
    _fetch(source, locked, tools)
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
    built = _compile(jobs, source, locked, tools)
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
    base = _base(locked, tools, plan.terms.codec)
    _fetch(source, locked, tools)
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


def _fetch(source: RecipeFile, locked: Lock, tools: Tools) -> None:
    missing = [wheel for wheel in locked.wheels if not tools.store.has(wheel.sha256)]
    if not missing:
        tools.console.current(f"{len(locked.wheels)} wheels")
        return
    with tools.console.step(f"fetch {len(missing)} of {len(locked.wheels)} wheels") as step:
        indexes = source.recipe.indexes
        fetch_wheels(missing, tools.store, tools.settings, show_progress(step), indexes=indexes)


def _rootfs(locked: Lock, tools: Tools) -> RootFilesystem | None:
    """Return the bootstrapped base; None where the base is an image, whose layers are then in the store."""
    debian = locked.file.debian
    if debian is None:
        _fetch_base(locked, tools)
        return None
    made = find_base(debian, tools.store)
    if made is not None:
        tools.console.current(f"base Debian {debian.suite}")
        return made
    with tools.console.step(f"bootstrap Debian {debian.suite} from {len(debian.base)} packages") as step:
        fetch_debs(debian.base, tools.store, tools.settings, show_progress(step))
        return bootstrap_base(debian, tools.store, step.detail)


def _fetch_base(locked: Lock, tools: Tools) -> None:
    base = locked.file.base
    if base is None or all(tools.store.has(layer.digest.removeprefix("sha256:")) for layer in base.layers):
        tools.console.current("base image")
        return
    with tools.console.step(f"fetch the base {base.reference}") as step:
        fetch_image(base, tools.store, tools.settings, show_progress(step))


def _base(locked: Lock, tools: Tools, compression: Compression) -> tuple[Layer, ...]:
    rootfs = _rootfs(locked, tools)
    if rootfs is not None:
        layers: tuple[Layer, ...] = (make_base_layer(rootfs.sha256, store=tools.store, compression=compression),)
    else:
        layers = image_layers(locked.file.base) if locked.file.base else ()
        tools.store.keep_result("base", base_identity(locked), {"diff_id": chain_ids(layers)[-1]})
    load_base(layers, epoch=locked.epoch, engine=tools.engine, store=tools.store)
    return layers


def wheel_jobs(source: RecipeFile, locked: Lock, store: Store) -> tuple[WheelJob, ...]:
    """Return the compile jobs of a locked recipe; reads the source folders beside it."""
    return plan_wheels(source, locked, toolchain_of(source, locked), store.path)


def toolchain_of(source: RecipeFile, locked: Lock) -> str:
    """Return the key of the toolchain of a recipe."""
    files = render_dockerfiles(source.recipe, locked)
    return toolchain_key(files.get("Dockerfile.toolchain", ""), base_identity(locked), locked)


def _compile(jobs: tuple[WheelJob, ...], source: RecipeFile, locked: Lock, tools: Tools) -> tuple[BuiltWheel, ...]:
    built = []
    wishes = {wish.project: wish for wish in wishes_of(source, tools.store, tools.settings)}
    for job in jobs:
        wheel = _find_wheel(job, tools)
        if wheel is None:
            if job.name in wishes:
                restore_source(locked.sources[job.name], wishes[job.name])
            wheel = _compile_one(job, _toolchain(source, locked, tools), tools)
            tools.share.share_results(SHARED, [job.key])
        built.append(wheel)
    return tuple(built)


def _find_wheel(job: WheelJob, tools: Tools) -> BuiltWheel | None:
    wheel = built_wheel(job, tools.store)
    if wheel is None:
        tools.share.fetch_results(SHARED, [job.key])
        wheel = built_wheel(job, tools.store)
    if wheel is not None:
        tools.console.current(f"wheel {wheel.filename}")
    return wheel


def _compile_one(job: WheelJob, toolchain: str, tools: Tools) -> BuiltWheel:
    with tools.console.step(f"compile {job.name} for {job.archs}") as step:
        wheel = build_wheel(
            job, toolchain=toolchain, engine=tools.engine, store=tools.store, on_line=show_lines(step, tools.console)
        )
        step.end(wheel.filename)
    return wheel


def _toolchain(source: RecipeFile, locked: Lock, tools: Tools) -> str:
    files, key = render_dockerfiles(source.recipe, locked), toolchain_of(source, locked)
    if has_toolchain(key, tools.engine, tools.store):
        return toolchain_tag(key)
    base = _base(locked, tools, COMPRESSIONS[source.recipe.compression])
    debs = locked.toolchain_debs
    wheels = (*locked.toolchain_wheels, *locked.compiler_wheels)
    with tools.console.step(f"build the toolchain: {len(debs)} packages, {len(wheels)} wheels") as step:
        fetch_debs(debs, tools.store, tools.settings, show_progress(step))
        fetch_wheels(wheels, tools.store, tools.settings, show_progress(step), indexes=source.recipe.indexes)
        return build_toolchain(
            files,
            key=key,
            base=load_base(base, epoch=locked.epoch, engine=tools.engine, store=tools.store),
            lock=locked,
            engine=tools.engine,
            store=tools.store,
            fill_debs=lambda folder: debs_folder(debs, tools.store, folder),
            on_line=show_lines(step, tools.console),
        )
