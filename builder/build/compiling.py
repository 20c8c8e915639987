"""WheelJob -> wheel in the store: compiled within memory, continued where it was, its failures remembered."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import parse_wheel_filename

from builder.build.failing import Ending, failure, forget_failure, out_of_memory, refuse_known_failure
from builder.build.measuring import Measures, keep_measures, unit_memory
from builder.build.wheels import BuiltWheel, built_wheel
from builder.errors import BuildFailedError
from builder.lock.archive import unpack_archive
from builder.sizes import shown_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.build.benches import Bench
    from builder.build.wheels import WheelJob
    from builder.engine import Exit
    from builder.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Workshop:
    """Where a job is compiled, where its wheel is kept, and who hears of it line by line.

    With `retry` a job that failed before with the same inputs is tried again.
    """

    bench: Bench
    store: Store
    on_line: Callable[[str], None]
    warn: Callable[[str], None]
    retry: bool = False


def build_wheel(job: WheelJob, shop: Workshop) -> BuiltWheel:
    """Compile one package and keep the wheel.

    A compilation that was interrupted goes on with its object files. One whose compiler the kernel kills for want of
    memory goes on with half as many jobs. Raises BuildFailedError, at once if the same job failed before.
    """
    with shop.store.exclusive(f"wheel-{job.key}"):
        done = built_wheel(job, shop.store)
        if done is not None:
            return done
        if not shop.retry:
            refuse_known_failure(job, shop.store)
        with shop.store.scratch() as scratch, _log(job, shop) as (log, heard):
            work = shop.store.unfinished(job.key)
            ended = _attempts(job, _tree(job, scratch), work, heard)
            found = sorted((work / "output").glob("*.whl"))
            if ended.code != 0 or len(found) != 1:
                ending = Ending(exit=ended, wheels=len(found), memory=shop.bench.effort.memory, log=log)
                raise failure(job, ending, shop.store)
            done = _keep(job, found[0], shop.store)
            shutil.rmtree(work)
            return done


def _attempts(job: WheelJob, tree: Path, work: Path, shop: Workshop) -> Exit:
    """Compile; while a compiler is killed for want of memory, again with half as many jobs."""
    jobs = shop.bench.effort.jobs_for(unit_memory(job.name, shop.store) * job.threads)
    seen = Measures(name=job.name)
    while True:
        shop.on_line(f"{job.name}: {jobs} at a time within {shown_bytes(shop.bench.effort.memory)} of memory")
        ended = shop.bench.compile(job, tree, work, jobs, shop.on_line)
        seen = seen.and_attempt(work / "output", ended, jobs)
        keep_measures(job.key, seen, shop.store)
        if not out_of_memory(ended) or jobs == 1:
            return ended
        jobs //= 2
        shop.warn(f"{job.name}: the kernel killed a compiler for want of memory; it goes on with {jobs} at a time")


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


@contextmanager
def _log(job: WheelJob, shop: Workshop) -> Iterator[tuple[Path, Workshop]]:
    """Give the log of a job, and the workshop whose lines also go there at once, whatever happens to this process.

    A job that goes on writes behind what its earlier attempts said.
    """
    begun = shop.store.unfinished(job.key).exists()
    with shop.store.log(f"{job.name}-{job.key[:16]}.log", append=begun) as file:

        def hear(line: str) -> None:
            file.write(f"{line}\n".encode())
            file.flush()
            shop.on_line(line)

        yield Path(file.name), replace(shop, on_line=hear)


def _keep(job: WheelJob, wheel: Path, store: Store) -> BuiltWheel:
    name, version, _, _ = parse_wheel_filename(wheel.name)
    filename = wheel.name
    if name != job.name:
        raise BuildFailedError(f"the source of {job.name} built a wheel of {name}")
    owned = wheel.with_name("owned.whl")
    with store.room():
        owned.write_bytes(wheel.read_bytes())
    done = BuiltWheel(name=name, version=str(version), filename=filename, sha256=store.add(owned))
    record = {"name": done.name, "version": done.version, "filename": done.filename, "sha256": done.sha256}
    store.keep_result("wheel", job.key, record)
    forget_failure(job, store)
    return done
