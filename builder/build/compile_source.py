"""Compiles one wheel, where the toolchain is: started with its Python, needs the standard library and `build` alone.

Arguments: the source tree (only read), the work folder (kept between attempts), the package's folder in the tree. The
wheel, `measures.json` and nothing else end up in `output` of the work folder; all that is said goes to standard error.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

NINJA_LOG = ".ninja_log"
CACHE_LINKS = Path("/usr/lib/ccache")  # where Debian's ccache stands in for gcc and g++
SAMPLE_SECONDS = 0.5
HITS = {"direct_cache_hit", "preprocessed_cache_hit"}
MISS = "cache_miss"


def main(source: Path, work: Path, subdirectory: str) -> int:
    """Compile and return the exit code of the build."""
    os.dup2(2, 1)  # one stream, so that the log keeps the order of what was said
    output = fresh(work / "output")
    temporary = fresh(work / "tmp")
    tree = prepared(source, work)
    environment = {**os.environ, "TMPDIR": str(temporary), **cached_compilers(work, os.environ)}
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(output), "."]
    with subprocess.Popen(command, cwd=tree / subdirectory, env=environment) as build:
        peak = Peak(build.pid)
        ended = build.wait()
        peak.stop()
    code = 128 - ended if ended < 0 else ended  # as a shell says that a signal ended it
    (output / "measures.json").write_text(json.dumps(measures(peak.bytes, work / "ccache.log")))
    if code == 0:
        for name in ("source", "tmp", "tools"):
            shutil.rmtree(work / name, ignore_errors=True)
    return code


def prepared(source: Path, work: Path) -> Path:
    """Return the copy of the tree to build in: the last one, if ninja knows which of its objects are whole."""
    tree = work / "source"
    if tree.is_dir() and next(tree.rglob(NINJA_LOG), None) is not None:
        sys.stderr.write("going on with the object files of the last attempt\n")
        return tree
    copy = fresh(work / "copy")
    shutil.copytree(source, copy, symlinks=True, dirs_exist_ok=True, copy_function=copy_writable)
    shutil.rmtree(tree, ignore_errors=True)
    return copy.rename(tree)


def copy_writable(source: str, target: str) -> None:
    """Copy a file with its executable bits, writable for us, whoever may write the source."""
    shutil.copyfile(source, target)
    Path(target).chmod(0o755 if os.access(source, os.X_OK) else 0o644)


def fresh(folder: Path) -> Path:
    """Return an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def cached_compilers(work: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that put ccache before the compilers; none without ccache or without its folder.

    nvcc is called by its path under $CUDA_HOME as often as through PATH, so it gets a CUDA_HOME of links with a
    script in nvcc's place. The host compiler that nvcc itself calls is the plain one.
    """
    plain = environment["PATH"]
    ccache = shutil.which("ccache", path=plain)
    if ccache is None or "CCACHE_DIR" not in environment:
        return {}
    found = {"CCACHE_STATSLOG": str(work / "ccache.log"), "PATH": plain}
    (work / "ccache.log").unlink(missing_ok=True)
    if "CUDA_HOME" in environment:
        home = linked_toolkit(Path(environment["CUDA_HOME"]), fresh(work / "tools"), ccache, plain)
        found |= {"CUDA_HOME": str(home), "PATH": f"{home / 'bin'}:{plain}"}
    if CACHE_LINKS.is_dir():
        found["PATH"] = f"{CACHE_LINKS}:{found['PATH']}"
    return found


def linked_toolkit(home: Path, folder: Path, ccache: str, path: str) -> Path:
    """Return a folder that looks like the CUDA toolkit `home`, whose nvcc goes through ccache."""
    (folder / "bin").mkdir()
    for entry in home.iterdir():
        if entry.name != "bin":
            (folder / entry.name).symlink_to(entry)
    for entry in (home / "bin").iterdir():
        if entry.name != "nvcc":
            (folder / "bin" / entry.name).symlink_to(entry)
    nvcc = folder / "bin" / "nvcc"
    nvcc.write_text(f'#!/bin/sh\nPATH="{path}" exec "{ccache}" "{home / "bin" / "nvcc"}" "$@"\n')
    nvcc.chmod(0o755)
    return folder


class Peak(threading.Thread):
    """The most memory that a process and its descendants held together, in `bytes`, looked at twice a second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self._pid = pid
        self._stopped = threading.Event()
        self.start()

    def run(self) -> None:
        """Look until stopped."""
        while not self._stopped.wait(SAMPLE_SECONDS):
            self.bytes = max(self.bytes, held_by(self._pid))

    def stop(self) -> None:
        """Stop looking."""
        self._stopped.set()
        self.join()


def held_by(pid: int) -> int:
    """Return the resident bytes of a process and its descendants."""
    parents, resident = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()  # proc(5): state is the first of these
            except OSError:  # it has just ended
                continue
            parents[int(entry.name)], resident[int(entry.name)] = int(fields[1]), int(fields[21])
    family = {pid}
    for child in sorted(parents):
        if ancestors(child, parents) & {pid}:
            family.add(child)
    return sum(resident.get(member, 0) for member in family) * resource.getpagesize()


def ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    """Return the processes above a process."""
    found: set[int] = set()
    while (pid := parents.get(pid, 0)) and pid not in found:
        found.add(pid)
    return found


def measures(peak: int, cache_log: Path) -> dict[str, float]:
    """Return what the build took: sizes in bytes, the largest single process among them; CPU time in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = cache_log.read_text().splitlines() if cache_log.is_file() else []
    return {
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_memory": peak,
        "unit_memory": used.ru_maxrss * 1024,
        "cache_hits": sum(line in HITS for line in lines),
        "cache_misses": sum(line == MISS for line in lines),
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
