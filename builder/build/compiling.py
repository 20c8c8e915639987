"""WheelJob -> wheel in the store: compiled in the toolchain container within memory, continued where it was."""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import parse_wheel_filename

from builder.build.effort import MEASURES, compile_user, unit_memory
from builder.build.wheels import SCRIPT, BuiltWheel, built_wheel
from builder.engine import ContainerRun, Mount
from builder.errors import BuildFailedError
from builder.lock.archive import unpack_archive
from builder.sizes import shown_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.build.effort import Effort
    from builder.build.wheels import WheelJob
    from builder.engine import Engine, Exit
    from builder.store import Store

TIMEOUT = 24 * 3600.0
EVIDENCE_LINES = 20
CACHE_SIZE = "20G"
FAILURE = "wheel-failure"
_KILLED = re.compile(rb"Killed signal terminated program|died due to signal 9|signal 9 \(Kill|^Killed$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Workshop:
    """Where a job is compiled: the image, the engine and its limits, and who hears of it line by line."""

    toolchain: str
    engine: Engine
    effort: Effort
    store: Store
    on_line: Callable[[str], None]
    say: Callable[[str], None]


def build_wheel(job: WheelJob, shop: Workshop) -> BuiltWheel:
    """Compile one package in the toolchain image, without network and not as root, and keep the wheel.

    A compilation that was interrupted goes on with its object files. One whose compiler the kernel kills for want of
    memory goes on with half as many jobs.
    """
    with shop.store.exclusive(f"wheel-{job.key}"):
        done = built_wheel(job, shop.store)
        if done is not None:
            return done
        with shop.store.scratch() as scratch, _log(job, shop.store) as (log, write):
            work = _work_folder(job, shop.store)
            heard = replace(shop, on_line=both(write, shop.on_line))
            ended = _attempts(job, _tree(job, scratch), work, heard)
            found = sorted((work / "output").glob("*.whl"))
            if ended.code != 0 or len(found) != 1:
                raise _failure(job, ended, log, wheels=len(found), shop=shop)
            done = _keep(job, found[0], shop.store)
            shutil.rmtree(work)
            return done


def _attempts(job: WheelJob, tree: Path, work: Path, shop: Workshop) -> Exit:
    """Run the container; while a compiler is killed for want of memory, again with half as many jobs."""
    jobs = shop.effort.jobs_for(unit_memory(job.name, shop.store))
    seen: dict[str, Any] = {"name": job.name, "attempts": 0}
    while True:
        shop.on_line(f"{job.name}: {jobs} at a time within {shown_bytes(shop.effort.memory)} of memory")
        ended = shop.engine.run(_container(job, tree, work, shop, jobs), shop.on_line)
        seen = _measured(seen, work, ended, jobs)
        shop.store.keep_result(MEASURES, job.key, seen)
        if not out_of_memory(ended) or jobs == 1:
            return ended
        jobs //= 2
        shop.say(f"{job.name}: the kernel killed a compiler for want of memory; going on with {jobs} at a time")


def both(first: Callable[[str], None], second: Callable[[str], None]) -> Callable[[str], None]:
    """Return what hands a line to two listeners."""

    def hear(line: str) -> None:
        first(line)
        second(line)

    return hear


def out_of_memory(ended: Exit) -> bool:
    """Say whether the kernel ended a compilation, or a compiler in it, for want of memory."""
    if ended.code == 0 or ended.timed_out:
        return False
    return ended.oom_killed or _KILLED.search(ended.stderr[-65536:]) is not None


def _measured(before: dict[str, Any], work: Path, ended: Exit, jobs: int) -> dict[str, Any]:
    """Return what was measured so far, the newest attempt included; an attempt that was killed measured nothing."""
    path = work / "output" / "measures.json"
    new = json.loads(path.read_bytes()) if path.is_file() else {}
    sums = {name: before.get(name, 0) + new.get(name, 0) for name in ("cpu_seconds", "cache_hits", "cache_misses")}
    most = {name: max(before.get(name, 0), new.get(name, 0)) for name in ("peak_memory", "unit_memory")}
    seconds = round(before.get("seconds", 0) + ended.seconds, 1)
    return {**before, **sums, **most, "seconds": seconds, "jobs": jobs, "attempts": before["attempts"] + 1}


def _work_folder(job: WheelJob, store: Store) -> Path:
    """Return the folder that the container builds in; what an interrupted attempt left in it is still there."""
    work = store.unfinished(job.key)
    for folder in (work, store.root / "ccache"):
        with store.room():
            folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(folder, *compile_user())
    return work


def _tree(job: WheelJob, scratch: Path) -> Path:
    """Return the folder of a job's source; an archive is unpacked for it, readable for the container's user."""
    if job.source.is_dir():
        return job.source
    scratch.chmod(0o711)
    tree = scratch / "source"
    tree.mkdir()
    tree.chmod(0o755)
    unpack_archive(job.source, tree)
    return tree


def _container(job: WheelJob, tree: Path, work: Path, shop: Workshop, jobs: int) -> ContainerRun:
    """Return the container of an attempt. Nothing in it that the key does not cover may change the wheel's bytes."""
    user, group = compile_user()
    return ContainerRun(
        image=shop.toolchain,
        command=("python3", "/compile_source.py", "/source", "/build", job.subdirectory),
        environment={
            "HOME": "/tmp",  # noqa: S108 - inside the container
            "MAX_JOBS": str(jobs),
            "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
            "CCACHE_DIR": "/ccache",
            "CCACHE_COMPILERCHECK": f"string:{job.compilers_digest}",
            "CCACHE_MAXSIZE": CACHE_SIZE,
            **dict(job.environment),
        },
        mounts=(
            Mount(source=tree, target="/source"),
            Mount(source=SCRIPT, target="/compile_source.py"),
            Mount(source=work, target="/build", read_only=False),
            Mount(source=shop.store.root / "ccache", target="/ccache", read_only=False),
        ),
        tmpfs=("/tmp",),  # noqa: S108 - inside the container
        user=f"{user}:{group}",
        memory=shop.effort.memory,
        cpu_shares=shop.effort.cpu_shares,
        timeout=TIMEOUT,
        read_only_root=True,
    )


@contextmanager
def _log(job: WheelJob, store: Store) -> Iterator[tuple[Path, Callable[[str], None]]]:
    """Give the log of a job and what writes a line to it, so that it is there whatever happens to this process."""
    with store.log(f"{job.name}-{job.key[:16]}.log") as file:

        def write(line: str) -> None:
            file.write(f"{line}\n".encode())
            file.flush()

        yield Path(file.name), write


def _keep(job: WheelJob, wheel: Path, store: Store) -> BuiltWheel:
    name, version, _, _ = parse_wheel_filename(wheel.name)
    filename = wheel.name
    if name != job.name:
        raise BuildFailedError(f"the source of {job.name} built a wheel of {name}")
    owned = wheel.with_name("owned.whl")
    owned.write_bytes(wheel.read_bytes())
    done = BuiltWheel(name=name, version=str(version), filename=filename, sha256=store.add(owned))
    record = {"name": done.name, "version": done.version, "filename": done.filename, "sha256": done.sha256}
    store.keep_result("wheel", job.key, record)
    return done


def _failure(job: WheelJob, ended: Exit, log: Path, *, wheels: int, shop: Workshop) -> BuildFailedError:
    if out_of_memory(ended):
        how = f"ran out of the {shown_bytes(shop.effort.memory)} of memory that it may use, one file at a time"
    elif ended.timed_out:
        how = f"was stopped after {ended.seconds:.0f} s"
    elif ended.code != 0:
        how = f"failed with exit code {ended.code}"
    else:
        how = f"left {wheels} wheels instead of one"
    tail = (ended.stdout + ended.stderr).decode(errors="replace").rstrip().splitlines()[-EVIDENCE_LINES:]
    return BuildFailedError(
        f"compiling {job.name} {how}",
        remedy=f"the whole log is in {log}",
        evidence=tuple(line.rstrip() for line in tail),
    )
