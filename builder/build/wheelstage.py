"""A recipe and its lock -> the wheels of all that comes as source: from the store, the registry, or compiled here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.build.compiling import Workshop, build_wheel
from builder.build.effort import effort_on, free_memory
from builder.build.foundation import toolchain_image, toolchain_of
from builder.build.progress import UnitProgress
from builder.build.wheels import SHARED, built_wheel, plan_wheels
from builder.errors import BuildFailedError
from builder.lock.sources import restore_source
from builder.lock.wish import wishes_of

if TYPE_CHECKING:
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
        wish = next((wish for wish in wishes_of(source, tools.store, tools.settings) if wish.project == job.name), None)
        if wish is not None:
            restore_source(locked.sources[job.name], wish)
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
    with tools.console.step(f"compile {job.name} for {job.archs}") as step:
        facts = tools.engine.facts()
        shop = Workshop(
            toolchain=toolchain,
            engine=tools.engine,
            effort=effort_on(facts, tools.settings, free=free_memory(facts.memory)),
            store=tools.store,
            on_line=UnitProgress(job.name, step, tools.console).hear,
            warn=tools.console.warn,
            retry=tools.retry,
        )
        wheel = build_wheel(job, shop)
        step.end(wheel.filename)
    return wheel
