"""Runs inside the base image: compiles the Python files of wheels into zips of byte code, on all cores.

Byte code depends on what else its process has compiled (CPython issue 129724: references in marshal data), so the files
of a wheel are compiled in one order, in parts of one size, each by a process that does nothing else. It is a fork of
this one, which compiles nothing: another import here may change the bytes of every wheel, other wheels do not. Only the
standard library is imported.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import marshal
import os
import sys
import zipfile
from collections import Counter, deque
from importlib.machinery import SourceFileLoader
from pathlib import Path

WHEELS = Path("/wheels")
JOBS = Path("/jobs")
RESULTS = Path("/results")
PART = 400  # files: large enough that opening the wheel is nothing beside them
HASHED = (1).to_bytes(4, "little")  # PEP 552: the source's hash is in the file, and is not looked at on import


def parts_of(wheel: str) -> list[int]:
    """Return where the parts of a wheel's job begin."""
    return list(range(0, len(json.loads((JOBS / wheel).read_bytes())), PART)) or [0]


def compile_part(wheel: str, first: int) -> None:
    """Compile one part of the files that the wheel's job lists, as [name in the wheel, path in the image].

    Its file holds a list of (path, byte code) for `join_parts`; a file that does not compile has None.
    """
    files = json.loads((JOBS / wheel).read_bytes())[first : first + PART]
    with zipfile.ZipFile(WHEELS / wheel) as archive:
        compiled = [(path, byte_code(archive.read(name), path)) for name, path in files]
    part_file(wheel, first).write_bytes(marshal.dumps(compiled))


def byte_code(source: bytes, path: str) -> bytes | None:
    """Return the byte code of a source file that will lie at `path`, or None if it does not compile."""
    try:
        code = SourceFileLoader("<byte code>", path).source_to_code(source, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # what a broken source raises
        return None
    return importlib.util.MAGIC_NUMBER + HASHED + importlib.util.source_hash(source) + marshal.dumps(code)


def join_parts(wheel: str) -> None:
    """Make one zip of the parts of a wheel, without the files that do not compile."""
    unfinished = RESULTS / f"{wheel}.part"
    with zipfile.ZipFile(unfinished, "w") as result:
        for part in (part_file(wheel, first) for first in parts_of(wheel)):
            for path, code in marshal.loads(part.read_bytes()):  # noqa: S302 - what compile_part wrote
                if code is not None:
                    result.writestr(zipfile.ZipInfo(path), code)
            part.unlink()
    unfinished.rename(RESULTS / wheel)


def part_file(wheel: str, first: int) -> Path:
    """Return the file of a part's byte code."""
    return RESULTS / f"{wheel}.{first}.part"


def compile_all(wheels: list[str]) -> int:
    """Compile wheels that have a job, in this order; return 1 if one fails.

    Says on standard error when a wheel is finished, or that it failed.
    """
    waiting: deque[tuple[str, int | None]] = deque((wheel, first) for wheel in wheels for first in parts_of(wheel))
    left = Counter(wheel for wheel, _ in waiting)
    running: dict[int, str] = {}
    while waiting or running:
        while waiting and len(running) < len(os.sched_getaffinity(0)):
            wheel, first = waiting.popleft()
            running[in_own_process(wheel, first)] = wheel
        process, status = os.wait()
        wheel = running.pop(process)
        if status != 0:
            say(f"failed {wheel}")
            continue
        left[wheel] -= 1
        if left[wheel] == 0:
            waiting.appendleft((wheel, None))
        elif left[wheel] < 0:
            say(f"compiled {wheel}")
    return 1 if any(count >= 0 for count in left.values()) else 0


def in_own_process(wheel: str, first: int | None) -> int:
    """Begin to compile a part of a wheel, or to join its parts (None), in a fork of this process; return the fork's id.

    The exit code of the fork is 1 if that fails.
    """
    process = os.fork()
    if process == 0:
        gc.disable()  # when it would run depends on what was done before the fork
        try:
            join_parts(wheel) if first is None else compile_part(wheel, first)
        except BaseException:  # noqa: BLE001 - the fork ends here
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return process


def say(line: str) -> None:
    """Write a line on standard error."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(compile_all(sys.argv[1:]))
