"""Runs inside the base image: compiles the Python files of wheels into zips of byte code, a fresh interpreter for each.

Byte code depends on what else its process has compiled (CPython issue 129724: references in marshal data), so a wheel's
files are compiled in one order by a process that does nothing else. Only the standard library is imported.
"""

from __future__ import annotations

import json
import os
import py_compile
import subprocess  # noqa: TID251 - not on this machine: inside the container
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

WHEELS = Path("/wheels")
JOBS = Path("/jobs")
RESULTS = Path("/results")


def compile_wheel(wheel: str) -> None:
    """Compile the files that the wheel's job lists, as [name in the wheel, path in the image]."""
    files = json.loads((JOBS / wheel).read_bytes())
    unfinished = RESULTS / f"{wheel}.part"
    with (
        tempfile.TemporaryDirectory() as folder,
        zipfile.ZipFile(WHEELS / wheel) as archive,
        zipfile.ZipFile(unfinished, "w") as result,
    ):
        for name, path in files:
            code = byte_code(archive.read(name), path, Path(folder))
            if code is not None:
                result.writestr(zipfile.ZipInfo(path), code)
    unfinished.rename(RESULTS / wheel)


def byte_code(source: bytes, path: str, folder: Path) -> bytes | None:
    """Return the byte code of a source file that will lie at `path`, or None if it does not compile."""
    plain, compiled = folder / "source", folder / "compiled"
    plain.write_bytes(source)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    try:
        py_compile.compile(str(plain), str(compiled), path, doraise=True, invalidation_mode=mode)
    except py_compile.PyCompileError:
        return None
    return compiled.read_bytes()


def compile_all() -> int:
    """Compile every wheel that has a job, the largest job first, on all cores; return 1 if one fails."""
    jobs = sorted(JOBS.iterdir(), key=lambda job: (-job.stat().st_size, job.name))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return max(pool.map(in_fresh_interpreter, [job.name for job in jobs]), default=0)


def in_fresh_interpreter(wheel: str) -> int:
    """Compile one wheel in a process of its own and say on standard error how it ended."""
    code = subprocess.run([sys.executable, "-S", __file__, wheel], check=False).returncode
    print(f"{'compiled' if code == 0 else 'failed'} {wheel}", file=sys.stderr, flush=True)  # noqa: T201
    return 0 if code == 0 else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        compile_wheel(sys.argv[1])
    else:
        sys.exit(compile_all())
