"""A compilation that failed: what is said of it, and whether the same job would fail again and is remembered."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from errno import ENOSPC
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import BuildFailedError
from builder.sizes import shown_bytes
from builder.store import DiskFullError

if TYPE_CHECKING:
    from builder.build.wheels import WheelJob
    from builder.engine import Exit
    from builder.store import Store

FAILURE = "wheel-failure"
EVIDENCE_LINES = 20
STOPPED = frozenset({128 + 2, 128 + 9, 128 + 15})  # by a signal that comes from outside: SIGINT, SIGKILL, SIGTERM
_TAIL_BYTES = 1 << 16
_KILLED = re.compile(rb"Killed signal terminated program|died due to signal 9|signal 9 \(Kill|^Killed$", re.MULTILINE)
_NO_SPACE = os.strerror(ENOSPC).encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How the last attempt of a job ended, within how many bytes of memory; `wheels` is how many it left."""

    exit: Exit
    wheels: int
    memory: int
    log: Path


def out_of_memory(ended: Exit) -> bool:
    """Say whether the kernel ended a compilation, or a compiler in it, for want of memory."""
    if ended.code == 0 or ended.timed_out:
        return False
    return ended.oom_killed or _KILLED.search(_tail(ended)) is not None


def failure(job: WheelJob, ending: Ending, store: Store) -> BuildFailedError:
    """Return the error for a failed job, and remember it under the job's key if the same job would fail again."""
    ended, said = ending.exit, f"compiling {job.name}"
    log = f"the whole log is in {ending.log}"
    if out_of_memory(ended):
        return BuildFailedError(
            f"{said} ran out of memory: one file alone needs more than the {shown_bytes(ending.memory)} it may use",
            remedy=f"give it more, such as ENVBUILD_MEMORY={2 * ending.memory >> 30 or 1}g; {log}",
            evidence=_evidence(ended),
            log=ending.log,
        )
    if _NO_SPACE in _tail(ended):
        return DiskFullError(f"{said}: no space is left on the disk", evidence=_evidence(ended), log=ending.log)
    if ended.timed_out or ended.code in STOPPED:
        how = f"was stopped after {ended.seconds:.0f} s"
        return BuildFailedError(f"{said} {how}", remedy=f"run it again: it goes on; {log}", evidence=_evidence(ended))
    how = f"failed with exit code {ended.code}" if ended.code else f"left {ending.wheels} wheels instead of one"
    error = BuildFailedError(f"{said} {how}", remedy=log, evidence=_evidence(ended), log=ending.log)
    _remember(job, error, store)
    return error


def refuse_known_failure(job: WheelJob, store: Store) -> None:
    """Raise the error that this very job ended with before, if it did."""
    record = store.result(FAILURE, job.key)
    if record is not None:
        raise BuildFailedError(
            f"{record['message']}, as it did before with exactly these inputs",
            remedy=f"change the recipe, or try again with --retry; {record['remedy']}",
            evidence=tuple(record["evidence"]),
            log=Path(record["log"]),
        )


def forget_failure(job: WheelJob, store: Store) -> None:
    """Let a job that failed run again."""
    store.forget_result(FAILURE, job.key)


def _remember(job: WheelJob, error: BuildFailedError, store: Store) -> None:
    record = {"message": error.message, "remedy": error.remedy, "evidence": list(error.evidence), "log": str(error.log)}
    store.keep_result(FAILURE, job.key, record)


def _evidence(ended: Exit) -> tuple[str, ...]:
    lines = (ended.stdout + ended.stderr).decode(errors="replace").rstrip().splitlines()
    return tuple(line.rstrip() for line in lines[-EVIDENCE_LINES:])


def _tail(ended: Exit) -> bytes:
    return (ended.stdout + ended.stderr)[-_TAIL_BYTES:]
