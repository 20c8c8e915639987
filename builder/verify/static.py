"""Static checks of an image: installed equals locked, every library carries code for the target, the stack imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builder.document import canonical_json, write_atomic
from builder.engine import Mount
from builder.verify.device_code import device_code_check
from builder.verify.inside import run_probe, with_log
from builder.verify.static_report import StaticReport, first_of, shortened
from builder.verify.verdict import Check, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from builder.engine import Engine
    from builder.store import Store
    from builder.verify.inside import ProbeAnswer

REQUEST = "/envbuild/request.json"
NAMES = ("static.installed", "static.device-code", "static.imports")
# Libraries of the driver: they come with the GPU's machine and are in no image.
DRIVER_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")


def static_checks(
    engine: Engine,
    *,
    image: str,
    capability: str,
    target_name: str,
    locked: tuple[tuple[str, str], ...],
    built: tuple[str, ...],
    stack: tuple[str, ...],
    store: Store,
    memory: int,
    timeout: float,
    on_line: Callable[[str], None] | None = None,
    driver_cuda: str | None = None,
) -> tuple[Check, ...]:
    """Look into an image once and return the three static checks.

    `locked` are (name, version) of all wheels, `built` the distributions that the recipe compiled, `stack` those to
    import. `capability` is such as `12.0`, `driver_cuda` the CUDA version of the target's driver, if it is known;
    `memory` is in bytes, `timeout` in seconds.
    """
    request = {
        "capability": capability,
        "driver_cuda": driver_cuda,
        "locked": [canonicalize_name(name) for name, _ in locked],
        "stack": list(stack),
        "import_timeout": timeout / (len(stack) + 1),
    }
    with store.scratch() as folder:
        write_atomic(folder / "request.json", canonical_json(request))
        answer = run_probe(
            engine,
            image=image,
            module="static",
            arguments=(REQUEST,),
            mounts=(Mount(source=folder / "request.json", target=REQUEST),),
            memory=memory,
            timeout=timeout,
            on_line=on_line,
        )
    if answer.report is None:
        return tuple(_not_run(name, answer) for name in NAMES)
    report = StaticReport.from_json(canonical_json(answer.report), source="the static probe's report")
    checks = (
        installed_check(report, locked),
        device_code_check(report, capability=capability, target_name=target_name, built=built),
        imports_check(report),
    )
    return tuple(with_log(check, answer, store) for check in checks)


def _not_run(name: str, answer: ProbeAnswer) -> Check:
    summary = f"the probe gave no report: {answer.ending}"
    return Check(name=name, level="static", outcome="skipped", summary=summary, evidence=answer.tail)


def installed_check(report: StaticReport, locked: Sequence[tuple[str, str]]) -> Check:
    """Hold the installed distributions and their files against the lock and the RECORDs of the wheels."""
    problems = [*_differences(report, locked)]
    for seen in report.distributions:
        problems += [f"{seen.name} {seen.version}: {problem}" for problem in seen.problems]
    count, files = len(report.distributions), sum(seen.files for seen in report.distributions)
    size = sum(seen.bytes for seen in report.distributions)
    return Check(
        name="static.installed",
        level="static",
        outcome="failed" if problems else "passed",
        summary=first_of(problems)
        or f"the {count} distributions are those of the lock, their {files} files those that the wheels recorded",
        figures={
            "distributions": count,
            "files": files,
            "megabytes": round(size / 1e6),
            "outside": len(report.others),
            "problems": len(problems),
        },
        evidence=shortened(problems),
    )


def _differences(report: StaticReport, locked: Sequence[tuple[str, str]]) -> list[str]:
    wanted: dict[str, str] = {canonicalize_name(name): version for name, version in locked}
    seen: dict[str, list[str]] = {}
    for one in report.distributions:
        seen.setdefault(one.name, []).append(one.version)
    missing = [f"{name} {wanted[name]} is locked and not installed" for name in sorted(wanted.keys() - seen.keys())]
    extra = [f"{name} {seen[name][0]} is installed and not locked" for name in sorted(seen.keys() - wanted.keys())]
    twice = [
        f"{name} is installed in several versions: {', '.join(seen[name])}" for name in seen if len(seen[name]) > 1
    ]
    other = [
        f"{name} {versions[0]} is installed, {wanted[name]} is locked"
        for name, versions in seen.items()
        if name in wanted and len(versions) == 1 and not _same_version(versions[0], wanted[name])
    ]
    return [*missing, *other, *extra, *twice]


def _same_version(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def imports_check(report: StaticReport) -> Check:
    """Say whether the modules of the stack's direct packages can be imported without a GPU and its driver."""
    failed = [one for one in report.imports if one.failed is not None]
    drivers = [one for one in failed if any(name in (one.error or "") for name in DRIVER_LIBRARIES)]
    modules = sum(len(one.modules) for one in report.imports)
    outcome: Outcome = "passed" if not failed else "skipped" if len(drivers) == len(failed) else "failed"
    # A failure that only a driver could cure must not hide another one.
    sentences = [f"import {one.failed}: {one.error}" for one in sorted(failed, key=lambda one: one in drivers)]
    if outcome == "skipped":
        sentences = [f"{sentence} (the driver's library; only a machine with a GPU has it)" for sentence in sentences]
    return Check(
        name="static.imports",
        level="static",
        outcome=outcome,
        summary=first_of(sentences) or f"all {modules} modules of {len(report.imports)} direct packages import",
        figures={"packages": len(report.imports), "modules": modules, "failed": len(failed)},
        evidence=shortened([line for one in failed for line in (f"{one.distribution}: {one.error}", *one.tail)]),
    )
