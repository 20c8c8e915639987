"""The doctor: what is right and wrong with this machine, and how to fix it."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from builder.errors import EngineError, UsageError
from builder.lock.reach import reach_findings
from builder.places import obstacle
from builder.preflight.doctor import doctor_findings, engine_disk
from builder.preflight.findings import Finding
from builder.preflight.host import existing, host_facts
from builder.preflight.host_script import driver_script
from builder.store import FOLDERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import RenderableType

    from builder.engine import EngineFacts
    from builder.recipe.source import RecipeFile
    from builder.settings import Settings

STYLES = {
    "ok": ("ok", "green"),
    "notice": ("note", "cyan"),
    "warning": ("warning", "yellow"),
    "error": ("problem", "red"),
}


def examine_machine(
    source: RecipeFile | None, settings: Settings, engine: Callable[[], EngineFacts]
) -> tuple[Finding, ...]:
    """Return one finding for each part of the machine: driver, GPUs, memory, disk, limits, engine, store, servers."""
    facts = host_facts(settings.store if settings.store.is_dir() else settings.store.parent)
    recipe = source.recipe if source else None
    return (
        *doctor_findings(facts, recipe),
        *_engine(engine, settings),
        _store(settings),
        *reach_findings(recipe, settings),
    )


def script_for(source: RecipeFile | None) -> str:
    """Return the commands that bring a host to the driver of a recipe; printed, never run."""
    if source is None:
        raise UsageError("--host-script: for which recipe?", remedy="give the path of a recipe that names its driver")
    if source.recipe.host is None:
        raise UsageError(f"{source.path} names no driver", remedy="add `host: {driver: ...}` to it")
    return driver_script(source.recipe.host.driver)


def _engine(engine: Callable[[], EngineFacts], settings: Settings) -> Iterator[Finding]:
    try:
        facts = engine()
    except EngineError as error:
        yield _say("engine", "error", error.message, error.remedy)
        return
    kept = "the containerd image store" if facts.containerd else facts.storage_driver
    storage = f"{kept}, {facts.cpus} cores, {facts.memory >> 30} GiB"
    yield _say(
        "engine", "ok", f"Docker {facts.version} (API {facts.api_version}) on {facts.operating_system}: {storage}"
    )
    if facts.host == platform.node():
        yield from _engine_disk(facts, settings.store)


def _engine_disk(facts: EngineFacts, store: Path) -> Iterator[Finding]:
    """Yield what is free where the engine keeps its images, if that is seen from here and is not the store's disk."""
    root = Path(facts.root)
    try:
        if root.stat().st_dev == existing(store).stat().st_dev:
            return
        free = shutil.disk_usage(root).free
    except OSError:
        return
    yield engine_disk(root, free, containerd=facts.containerd)


def _store(settings: Settings) -> Finding:
    place = settings.store
    for folder in (place, *(place / name for name in FOLDERS)):
        why = obstacle(folder)
        if os.path.lexists(folder) and not folder.is_dir():
            why = f"{folder} is no folder"
        if why:
            remedy = "set ENVBUILD_STORE to a folder that you can write"
            return _say("store", "error", f"{place} cannot be written: {why}", remedy)
    return _say("store", "ok", f"{place}" if place.exists() else f"{place} is made by the first build")


def _say(rule: str, severity: str, sentence: str, remedy: str = "") -> Finding:
    return Finding.model_validate(
        {"rule": rule, "severity": severity, "sentence": sentence, "remedy": remedy, "certainty": "reproduced"}
    )


def doctor_table(findings: Iterable[Finding]) -> RenderableType:
    """Return the findings as a table for people, each problem with its remedy."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        word, style = STYLES[finding.severity]
        table.add_row(Text(word, style=style), finding.rule, _words(finding))
    return table


def _words(finding: Finding) -> Group:
    lines = [Text(finding.sentence)]
    if finding.remedy and finding.severity != "ok":
        lines.append(Text(f"→ {finding.remedy}", style="cyan"))
    return Group(*lines)
