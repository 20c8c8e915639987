"""Runs inside the base image: compiles the Python files of wheels into zips of byte code, on all cores.

Byte code depends on what else its process has compiled (CPython issue 129724: references in marshal data), so the files
of a wheel are compiled in one order, in parts of one size, each by a process that does nothing else. Only the standard
library is imported.
"""

from __future__ import annotations

import importlib.util
import json
import marshal
import os
import subprocess  # noqa: TID251 - not on this machine: inside the container
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import SourceFileLoader
from pathlib import Path

WHEELS = Path("/wheels")
JOBS = Path("/jobs")
RESULTS = Path("/results")
PART = 400  # files: large enough that starting an interpreter is nothing beside them
HASHED = (1).to_bytes(4, "little")  # PEP 552: the source's hash is in the file, and is not looked at on import


def parts_of(wheel: str) -> list[int]:
    """Return where the parts of a wheel's job begin."""
    return list(range(0, len(json.loads((JOBS / wheel).read_bytes())), PART)) or [0]


def compile_part(wheel: str, first: int) -> None:
    """Compile one part of the files that the wheel's job lists, as [name in the wheel, path in the image]."""
    files = json.loads((JOBS / wheel).read_bytes())[first : first + PART]
    with zipfile.ZipFile(WHEELS / wheel) as archive, zipfile.ZipFile(part_file(wheel, first), "w") as result:
        for name, path in files:
            code = byte_code(archive.read(name), path)
            if code is not None:
                result.writestr(zipfile.ZipInfo(path), code)


def byte_code(source: bytes, path: str) -> bytes | None:
    """Return the byte code of a source file that will lie at `path`, or None if it does not compile."""
    try:
        code = SourceFileLoader("<byte code>", path).source_to_code(source, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # what a broken source raises
        return None
    return importlib.util.MAGIC_NUMBER + HASHED + importlib.util.source_hash(source) + marshal.dumps(code)


def join_parts(wheel: str) -> None:
    """Make one zip of the parts of a wheel."""
    unfinished = RESULTS / f"{wheel}.part"
    with zipfile.ZipFile(unfinished, "w") as result:
        for part in (part_file(wheel, first) for first in parts_of(wheel)):
            with zipfile.ZipFile(part) as finished:
                for info in finished.infolist():
                    result.writestr(info, finished.read(info))
            part.unlink()
    unfinished.rename(RESULTS / wheel)


def part_file(wheel: str, first: int) -> Path:
    """Return the file of a part's byte code."""
    return RESULTS / f"{wheel}.{first}.part"


def compile_all() -> int:
    """Compile every wheel that has a job, the largest job first; return 1 if one fails."""
    jobs = sorted(JOBS.iterdir(), key=lambda job: (-job.stat().st_size, job.name))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        running = {
            job.name: [pool.submit(in_fresh_interpreter, job.name, first) for first in parts_of(job.name)]
            for job in jobs
        }
        codes = [finish(wheel, max(part.result() for part in parts)) for wheel, parts in running.items()]
    return max(codes, default=0)


def in_fresh_interpreter(wheel: str, first: int) -> int:
    """Compile one part in a process of its own; return 1 if that failed."""
    command = [sys.executable, "-S", __file__, wheel, str(first)]
    return 0 if subprocess.run(command, check=False).returncode == 0 else 1


def finish(wheel: str, code: int) -> int:
    """Join the parts of a wheel, if none failed, and say on standard error how it ended."""
    if code == 0:
        join_parts(wheel)
    print(f"{'failed' if code else 'compiled'} {wheel}", file=sys.stderr, flush=True)  # noqa: T201
    return code


if __name__ == "__main__":
    if len(sys.argv) > 1:
        compile_part(sys.argv[1], int(sys.argv[2]))
    else:
        sys.exit(compile_all())
