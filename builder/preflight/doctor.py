"""The examination of a machine: each part is ok, or a problem with how to fix it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.preflight.conditions import public_version
from builder.preflight.findings import Finding, Severity
from builder.preflight.host import SHM
from builder.preflight.pins import driver_floor, read_pins
from builder.preflight.resources import disk_need, engine_disk_need
from builder.recipe.targets import find_product, find_target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.preflight.host import HostFacts
    from builder.recipe.model import Recipe

LEAST_MEMORY = 8 << 30
LEAST_SHM = 1 << 30
LEAST_OPEN_FILES = 1024
_GIB = 1 << 30


def doctor_findings(facts: HostFacts, recipe: Recipe | None) -> tuple[Finding, ...]:
    """Return what is right and wrong with a machine, for a recipe if one is given: one finding per check."""
    return (
        _driver(facts, recipe),
        *_gpus(facts, recipe),
        *(_container(facts) if facts.gpus else ()),
        _memory(facts),
        _disk(facts),
        _open_files(facts),
    )


def _say(rule: str, severity: Severity, sentence: str, remedy: str = "") -> Finding:
    return Finding(rule=rule, severity=severity, sentence=sentence, remedy=remedy, certainty="reproduced")


def _driver(facts: HostFacts, recipe: Recipe | None) -> Finding:
    if facts.driver is None:
        if facts.driver_problem.endswith("not installed"):
            return _say(
                "driver", "notice", f"no NVIDIA driver ({facts.driver_problem}): images are built here, not run"
            )
        return _say("driver", "error", facts.driver_problem, "repair or install the driver; then `nvidia-smi` answers")
    floor, why = _driver_floor(recipe) if recipe else (None, "")
    native = f", native to CUDA {facts.driver_cuda}" if facts.driver_cuda else ""
    if floor is not None and _older(facts.driver, floor):
        remedy = "see `envbuild doctor --host-script RECIPE` for the commands"
        return _say("driver", "error", f"driver {facts.driver}{native}, and {why} {floor} or newer", remedy)
    return _say("driver", "ok", f"driver {facts.driver}{native}")


def _driver_floor(recipe: Recipe) -> tuple[str | None, str]:
    """Return the oldest driver that a recipe may meet, and who asks for it."""
    if recipe.host is not None:
        return recipe.host.driver, "the recipe asks for"
    cuda = read_pins(recipe, None).needed_cuda
    return driver_floor(cuda), f"CUDA {cuda} needs"


def _older(driver: str, floor: str) -> bool:
    left, right = public_version(driver), public_version(floor)
    return left is not None and right is not None and left < right


def _gpus(facts: HostFacts, recipe: Recipe | None) -> Iterator[Finding]:
    if not facts.gpus:
        return
    products = [gpu.product for gpu in facts.gpus]
    named = ", ".join(f"{products.count(product)}x {product}" for product in sorted(set(products)))
    if recipe is None:
        unknown = sorted({product for product in products if find_product(product) is None})
        note = f" (not in the table of targets: {', '.join(unknown)})" if unknown else ""
        yield _say("gpus", "notice" if unknown else "ok", named + note)
        return
    target = find_target(recipe.target.gpu)
    right = products.count(target.product)
    if right >= recipe.target.count:
        yield _say("gpus", "ok", named)
    else:
        wanted = f"the recipe is for {recipe.target.count}x {target.product}"
        yield _say("gpus", "notice", f"{named}; {wanted}", "build here, and prove the image on the target machine")


def _container(facts: HostFacts) -> Iterator[Finding]:
    if facts.container_toolkit is None:
        remedy = "install nvidia-container-toolkit, then run `nvidia-ctk runtime configure --runtime=docker`"
        yield _say("container-toolkit", "error", "containers cannot see the GPUs: no NVIDIA container toolkit", remedy)
    else:
        yield _say("container-toolkit", "ok", f"NVIDIA container toolkit {facts.container_toolkit}")
    said = f"{SHM} has {_size(facts.shm)}"
    if facts.shm < LEAST_SHM:
        yield _say("shm", "warning", said, f"mount it larger: `mount -o remount,size=8g {SHM}`")
    else:
        yield _say("shm", "ok", said)
    if facts.locked_memory is None:
        yield _say("locked-memory", "ok", "a process may lock all memory")
    else:
        limit = f"a process may lock {_size(facts.locked_memory)}"
        yield _say("locked-memory", "notice", limit, "run containers with `--ulimit memlock=-1`")


def _memory(facts: HostFacts) -> Finding:
    said = f"{_size(facts.memory)} of memory, {_size(facts.memory_free)} free, {facts.cores} cores"
    if facts.memory < LEAST_MEMORY:
        return _say("memory", "warning", said, f"compiling CUDA sources wants {_size(LEAST_MEMORY)} or more")
    return _say("memory", "ok", said)


def _disk(facts: HostFacts) -> Finding:
    said = f"{_size(facts.disk_free)} of disk free at the store"
    if facts.disk_free < disk_need(None):
        remedy = f"a full stack needs about {_size(disk_need(None))}: make room, or set ENVBUILD_STORE to a larger disk"
        return _say("disk", "warning", said, remedy)
    return _say("disk", "ok", said)


def engine_disk(root: Path, free: int, *, containerd: bool) -> Finding:
    """Return what the disk of an engine's images has room for; `free` is in bytes."""
    need = engine_disk_need(keeps_archives=containerd)
    said = f"{_size(free)} of disk free for the engine's images, in {root}"
    if free < need:
        remedy = f"the image of a full stack needs about {_size(need)}: make room, `envbuild gc`, `docker system prune`"
        return _say("engine-disk", "warning", said, remedy)
    return _say("engine-disk", "ok", said)


def _open_files(facts: HostFacts) -> Finding:
    said = f"a process may open {facts.open_files} files"
    if facts.open_files < LEAST_OPEN_FILES:
        return _say("open-files", "warning", said, "raise the limit: `ulimit -n 65536`")
    return _say("open-files", "ok", said)


def _size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / (1 << 20):.0f} MiB"
