"""Static checks of an image: installed equals locked, every library carries code for the target, the stack imports."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builder.document import canonical_json
from builder.process import MissingProgramError
from builder.verify.device_code import device_code_check
from builder.verify.dry_run.pretended import FOLDER, described, pretended_libraries
from builder.verify.imports import imports_check
from builder.verify.inside import NO_REPORT, with_log
from builder.verify.known import Known
from builder.verify.links import links_check
from builder.verify.overlaid import judge_overlaid
from builder.verify.requirements import requirements_check
from builder.verify.serve_options import MODEL_OPTION, command_line, serve_check
from builder.verify.static_report import StaticReport, first_of, shortened
from builder.verify.verdict import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from builder.recipe.model import Serve
    from builder.recipe.targets import GpuTarget
    from builder.store import Store
    from builder.verify.inside import ProbeAnswer
    from builder.verify.place import InImage

NAMES = ("static.installed", "static.requirements", "static.links", "static.device-code", "static.imports")


def static_checks(
    place: InImage,
    *,
    target: GpuTarget,
    locked: tuple[tuple[str, str], ...],
    built: tuple[str, ...],
    stack: tuple[str, ...],
    asked: tuple[str, ...] = (),
    overrides: tuple[str, ...] = (),
    serve: Serve | None = None,
    timeout: float,
    on_line: Callable[[str], None] | None = None,
    driver_cuda: str | None = None,
    places: Mapping[str, str] = MappingProxyType({}),
    again: bool = False,
) -> tuple[Check, ...]:
    """Look into an image once and return the static checks.

    `locked` are (name, version) of all wheels, `built` the distributions that the recipe compiled, `stack` those to
    import, `asked` the same with the extras that are asked of them, `overrides` those whose requirements the recipe
    overrules, `serve` how the server is started. `driver_cuda` is the CUDA version of the target's driver, if it is
    known; `timeout` is in seconds. `places` are the layers by the distribution that they hold: of those that were seen
    before, the files are not read, but for `again`.
    """
    known = Known(store=place.store, places=places, again=again)
    gpu = f"{target.capability} {driver_cuda or ''}".strip()
    players, missing = _players(place.store) if stack or serve else ({}, None)
    request = {
        "capability": target.capability,
        "driver_cuda": driver_cuda,
        "locked": [canonicalize_name(name) for name, _ in locked],
        "stack": list(stack),
        "import_timeout": timeout / (2 * len(stack) + 2),
        "pretended": FOLDER if players else None,
        "gpu": described(target, driver_cuda),
        "serve": _serve_request(serve),
        "known": known.recall(gpu),
    }
    answer = place.probe("static", request, players, timeout=timeout, on_line=on_line)
    if answer.report is None:
        return tuple(_not_run(name, answer) for name in NAMES)
    report = StaticReport.from_json(canonical_json(answer.report), source="the static probe's report", remedy=NO_REPORT)
    known.keep(report.facts, gpu)
    checks = (
        installed_check(report, locked, asked),
        requirements_check(report, overrides),
        links_check(report, built=built, stack=stack),
        device_code_check(report, capability=target.capability, target_name=target.id, built=built),
        imports_check(report, target.product, missing),
        *([serve_check(report.serve)] if report.serve is not None else []),
    )
    return tuple(with_log(check, answer, place.store) for check in checks)


def _players(store: Store) -> tuple[dict[str, Path], str | None]:
    """Return the libraries that play the GPU, or why there are none."""
    try:
        return pretended_libraries(store), None
    except MissingProgramError as error:
        return {}, error.message


def _serve_request(serve: Serve | None) -> dict[str, object] | None:
    if serve is None or serve.engine not in MODEL_OPTION:
        return None
    return {"engine": serve.engine, "arguments": command_line(serve), "env": serve.env}


def _not_run(name: str, answer: ProbeAnswer) -> Check:
    summary = f"the probe gave no report: {answer.ending}"
    return Check(name=name, level="static", outcome="skipped", summary=summary, evidence=answer.tail)


def installed_check(report: StaticReport, locked: Sequence[tuple[str, str]], asked: Sequence[str]) -> Check:
    """Hold the installed distributions and their files against the lock and the RECORDs of the wheels.

    A file in whose place a dependent's lies has to agree with the RECORD of that one.
    """
    problems = [*_differences(report, locked)]
    for seen in report.distributions:
        problems += [f"{seen.name} {seen.version}: {problem}" for problem in seen.problems]
    overlaid = judge_overlaid(report, asked)
    problems += overlaid.problems
    count, files = len(report.distributions), sum(seen.files for seen in report.distributions)
    size = sum(seen.bytes for seen in report.distributions)
    return Check(
        name="static.installed",
        level="static",
        outcome="failed" if problems else "passed",
        summary=first_of(problems)
        or f"the {count} distributions are those of the lock, their {files} files those that the wheels recorded"
        + (f", but for {overlaid.files} in whose place a dependent's lie" if overlaid.files else ""),
        figures={
            "distributions": count,
            "files": files,
            "overlaid": overlaid.files,
            "recalled": sum(seen.recalled for seen in report.distributions),
            "megabytes": round(size / 1e6),
            "outside": len(report.others),
            "problems": len(problems),
        },
        evidence=shortened([*problems, *overlaid.notices]),
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
