"""A recipe and its lock -> the wheels of all that comes as source: from the store, the registry, or compiled here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from builder.build.base import base_identity
from builder.build.benches import ContainerBench, HostBench, host_toolchain
from builder.build.compiling import Workshop, build_wheel
from builder.build.effort import effort_here, effort_on, free_memory
from builder.build.foundation import toolchain_image, toolchain_of
from builder.build.progress import UnitProgress
from builder.build.uses import note_use, remember_workspace
from builder.build.wheels import SHARED, built_wheel, plan_wheels
from builder.document import key_of
from builder.errors import BuildFailedError
from builder.lock.sources import restore_source
from builder.lock.wheels import fetch_wheels
from builder.lock.wish import wishes_of
from builder.recipe.packages import known_package
from builder.recipe.workspace import workspace_of
from builder.store import mended
from builder.tools import show_progress

if TYPE_CHECKING:
    from builder.build.benches import Bench
    from builder.build.wheels import BuiltWheel, WheelJob
    from builder.lock.model import Lock
    from builder.recipe.source import RecipeFile
    from builder.store import Store
    from builder.tools import Tools

Origin = Literal["store", "registry", "compiled"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeWheel:
    """A wheel, the job that it answers, and where it came from just now."""

    job: WheelJob
    wheel: BuiltWheel
    origin: Origin


def wheel_jobs(source: RecipeFile, locked: Lock, store: Store) -> tuple[WheelJob, ...]:
    """Return the compile jobs of a locked recipe; nothing is run."""
    return plan_wheels(source, locked, toolchain_of(source, locked), store.path)


def compile_recipe(source: RecipeFile, locked: Lock, tools: Tools, *, compiling: bool = True) -> tuple[MadeWheel, ...]:
    """Return the wheels of all that a locked recipe compiles.

    A file of the store that turns out to be damaged is fetched or made again.
    """
    remember_workspace(workspace_of(source).root, tools.store)
    jobs = wheel_jobs(source, locked, tools.store)
    needs = (toolchain_of(source, locked), base_identity(locked), *(job.key for job in jobs))
    note_use(locked.digest, needs, tools.store, more=True)
    return mended(
        tools.store, lambda: make_wheels(jobs, source, locked, tools, compiling=compiling), tools.console.warn
    )


def fetch_locked(source: RecipeFile, locked: Lock, tools: Tools) -> None:
    """Bring the wheels that a lock names into the store."""
    missing = [wheel for wheel in locked.wheels if not tools.store.has(wheel.sha256)]
    if not missing:
        tools.console.current(f"{len(locked.wheels)} wheels")
        return
    with tools.console.step(f"fetch {len(missing)} of {len(locked.wheels)} wheels") as step:
        indexes = source.recipe.indexes
        fetch_wheels(missing, tools.store, tools.settings, show_progress(step), indexes=indexes)


def make_wheels(
    jobs: tuple[WheelJob, ...], source: RecipeFile, locked: Lock, tools: Tools, *, compiling: bool = True
) -> tuple[MadeWheel, ...]:
    """Return the wheel of every job, in their order.

    What is in neither the store nor the registry is compiled, or, without `compiling`, a BuildFailedError.
    """
    return tuple(_make(job, source, locked, tools, compiling=compiling) for job in jobs)


def _make(job: WheelJob, source: RecipeFile, locked: Lock, tools: Tools, *, compiling: bool) -> MadeWheel:
    made = find_wheel(job, tools)
    if made is None:
        if not compiling:
            raise BuildFailedError(
                f"no finished wheel of {job.name} is in the registry under {SHARED.kind}-{job.key}",
                remedy="build it where the registry can be filled: `envbuild wheels RECIPE --push`",
            )
        _restore(job, source, locked, tools)
        wheel = _compile(job, toolchain_image(source, locked, tools), tools)
        made = MadeWheel(job=job, wheel=wheel, origin="compiled")
    if made.origin != "registry":
        tools.share.share_results(SHARED, [job.key])
    return made


def find_wheel(job: WheelJob, tools: Tools) -> MadeWheel | None:
    """Return the finished wheel of a job from the store, else from the registry, if either has it."""
    origin: Origin = "store"
    wheel = built_wheel(job, tools.store)
    if wheel is None:
        tools.share.fetch_results(SHARED, [job.key])
        origin, wheel = "registry", built_wheel(job, tools.store)
    if wheel is None:
        return None
    tools.console.current(f"wheel {wheel.filename}")
    return MadeWheel(job=job, wheel=wheel, origin=origin)


def _compile(job: WheelJob, toolchain: str, tools: Tools) -> BuiltWheel:
    facts = tools.engine.facts()
    effort = effort_on(facts, tools.settings, free=free_memory(facts.memory))
    bench = ContainerBench(toolchain=toolchain, engine=tools.engine, effort=effort, cache=tools.store.root / "ccache")
    return _compile_on(bench, job, tools)


def _compile_on(bench: Bench, job: WheelJob, tools: Tools) -> BuiltWheel:
    with tools.console.step(f"compile {job.name} for {job.archs}") as step:
        shop = Workshop(
            bench=bench,
            store=tools.store,
            on_line=UnitProgress(job.name, step, tools.console).hear,
            warn=tools.console.warn,
            retry=tools.retry,
        )
        wheel = build_wheel(job, shop)
        step.end(wheel.filename)
    return wheel


def compile_here(source: RecipeFile, locked: Lock, tools: Tools, python: str) -> tuple[MadeWheel, ...]:
    """Return the wheels of a recipe as this machine's own compilers and a Python with torch make them.

    Their keys are over this machine's versions, so no image takes such a wheel, and none is shared.
    """
    made = []
    for job in wheel_jobs(source, locked, tools.store):
        facts = host_toolchain(python, tuple(known_package(job.name).requires))
        here = replace(job, toolchain_key=key_of({"here": facts}))
        origin: Origin = "store"
        wheel = built_wheel(here, tools.store)
        if wheel is None:
            _restore(job, source, locked, tools)
            origin, wheel = (
                "compiled",
                _compile_on(HostBench(python=python, effort=effort_here(tools.settings)), here, tools),
            )
        made.append(MadeWheel(job=here, wheel=wheel, origin=origin))
    return tuple(made)


def _restore(job: WheelJob, source: RecipeFile, locked: Lock, tools: Tools) -> None:
    """Bring the fetched source of a job into the store; a folder beside the recipe is where it is."""
    wish = next((wish for wish in wishes_of(source, tools.store, tools.settings) if wish.project == job.name), None)
    if wish is not None:
        restore_source(locked.sources[job.name], wish)
