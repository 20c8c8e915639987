"""The smoke test: every check that the recipe requires, cheapest first, and the verdict over them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from builder.verify.grounds import suite_digest
from builder.verify.levels import DECODING, Decoding
from builder.verify.place import InImage
from builder.verify.verdict import Check, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from builder.engine import Engine
    from builder.recipe.model import Serve, Smoke
    from builder.recipe.targets import GpuTarget
    from builder.store import Store
    from builder.verify.verdict import Level

_UNITS = {"m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What is proven: an image in the engine, what it must hold, and the GPU that it is for.

    `asked` are the packages of the stack with the extras that the recipe asks for. `driver_cuda` is the CUDA version of
    the oldest driver that the recipe allows, None if it says none. `places` are the diff ids of its layers by the
    distribution that they hold; `again`: nothing is taken from an earlier proof.
    """

    recipe: str
    image_id: str
    lock_digest: str
    target: GpuTarget
    installed: tuple[tuple[str, str], ...]
    built: tuple[str, ...]
    stack: tuple[str, ...]
    asked: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    driver_cuda: str | None = None
    serve: Serve | None = None
    question: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    waived: dict[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    again: bool = False


def smoke_image(
    subject: Subject,
    smoke: Smoke,
    *,
    engine: Engine,
    store: Store,
    on_line: Callable[[str], None],
) -> Verdict:
    """Run the required checks inside the image and return the verdict; stops at the first level that failed."""

    def place(gpus: int) -> InImage:
        shared = bytes_of(subject.serve.shm_size) if subject.serve and subject.serve.shm_size else 1 << 30
        return InImage(
            engine=engine, store=store, image=subject.image_id, memory=memory_of(smoke), gpus=gpus, shared_memory=shared
        )

    decoding = Decoding(
        place=place,
        serve=subject.serve,
        store=store,
        timeout=float(smoke.timeout),
        on_line=on_line,
    )

    def run(level: Level) -> tuple[Check, ...]:
        if level in DECODING:
            return decoding.run(level)
        return _look(level, subject, smoke, place(0), on_line=on_line)

    checks = run_levels(smoke.require, run)
    result, cause = judge(checks, smoke.require)
    facts = engine.facts()
    return Verdict(
        recipe=subject.recipe,
        result=result,
        cause=cause,
        lock_digest=subject.lock_digest,
        image_id=subject.image_id,
        suite_digest=suite_digest(),
        question=subject.question,
        sources=subject.sources,
        waived=subject.waived,
        engine={"version": facts.version, "operating_system": facts.operating_system},
        required=smoke.require,
        checks=checks,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    )


_LEVELS: tuple[Level, ...] = ("static", "dry-run", "cpu-decode", "program", "gpu-decode", "target-decode")


def run_levels(required: Iterable[Level], run: Callable[[Level], tuple[Check, ...]]) -> tuple[Check, ...]:
    """Run the levels, cheapest first; those after one that failed are skipped."""
    checks: list[Check] = []
    for level in sorted(required, key=_LEVELS.index):
        if any(check.outcome == "failed" for check in checks):
            checks.append(_not_reached(level))
        else:
            checks.extend(run(level))
    return tuple(checks)


def bytes_of(size: str) -> int:
    """Return a size of a recipe, such as `8g`, in bytes."""
    return int(size[:-1]) * _UNITS[size[-1]]


def memory_of(smoke: Smoke) -> int:
    """Return the memory of the smoke test's container in bytes."""
    return bytes_of(smoke.memory)


def _look(
    level: Level, subject: Subject, smoke: Smoke, place: InImage, *, on_line: Callable[[str], None]
) -> tuple[Check, ...]:
    from builder.verify.dry_run.check import dry_run  # noqa: PLC0415 - slow to import, and rarely needed
    from builder.verify.dry_run.plan import planned_groups  # noqa: PLC0415
    from builder.verify.program import program_check  # noqa: PLC0415
    from builder.verify.static import static_checks  # noqa: PLC0415

    if level == "static":
        return static_checks(
            place,
            target=subject.target,
            locked=subject.installed,
            built=subject.built,
            stack=subject.stack,
            asked=subject.asked,
            overrides=subject.overrides,
            serve=subject.serve,
            driver_cuda=subject.driver_cuda,
            places=subject.places,
            again=subject.again,
            timeout=float(smoke.timeout),
            on_line=on_line,
        )
    if level == "dry-run":
        check = dry_run(
            place,
            target=subject.target,
            groups=planned_groups(smoke.model, subject.serve, subject.stack),
            environment=subject.serve.env if subject.serve else {},
            driver_cuda=subject.driver_cuda,
            timeout=float(smoke.timeout),
            on_line=on_line,
        )
        return (check,)
    if level == "program":
        check = program_check(place, smoke=smoke, serve=subject.serve, on_line=on_line)
        return (check,)
    return (_unsupported(level),)


def _unsupported(level: Level) -> Check:
    return Check(
        name=level, level=level, outcome="skipped", summary=f"this version of envbuild has no {level} check yet"
    )


def _not_reached(level: Level) -> Check:
    return Check(name=level, level=level, outcome="skipped", summary="not run: a cheaper check failed before it")
