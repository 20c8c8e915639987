"""Runs where the rendered Dockerfile is built: makes what pip installed the files that envbuild's layers hold.

It compiles the byte code, and takes away the build backends that wheels carry by mistake (`BUILD_BACKEND`). The byte
code of the wheels that `last.txt` lists, because they lie over others, replaces that of the others.

Which files a wheel has and where they lie follows from the wheel alone (PEP 427); `compile_inside.py` beside this file
compiles them, each part of a wheel in a process of its own. Only the standard library is imported.
"""

from __future__ import annotations

import json
import subprocess  # noqa: TID251 - not on this machine: inside the container
import sys
import zipfile
from pathlib import Path

COMPILER = Path(__file__).with_name("compile_inside.py")
LAST = Path(__file__).with_name("last.txt")
BUILD_BACKEND, TESTS = "build_backend.py", "/tests/"  # as in wheelfile.py
WHEELS, JOBS, RESULTS = Path("/wheels"), Path("/jobs"), Path("/results")  # as in compile_inside.py


def sources_of(wheel: Path, prefix: str, site_packages: str) -> list[tuple[str, str]]:
    """Return a wheel's sources of byte code as [name in the wheel, path in the image], sorted by the path's bytes."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py") and name != BUILD_BACKEND]
    found = [(name, installed(name, prefix, site_packages)) for name in names]
    inside = [item for item in found if item[1].startswith(f"{site_packages}/")]
    wanted = [item for item in inside if TESTS not in item[1].removeprefix(site_packages)]
    return sorted(wanted, key=lambda item: item[1].encode())


def installed(name: str, prefix: str, site_packages: str) -> str:
    """Return where an installer puts a file of a wheel; headers and scripts are never imported."""
    top, _, rest = name.partition("/")
    if not top.endswith(".data"):
        return f"{site_packages}/{name}"
    scheme, _, path = rest.partition("/")
    folder = {"purelib": site_packages, "platlib": site_packages, "data": prefix}.get(scheme, "")
    return f"{folder}/{path}"


def compile_installed(wheels: Path, prefix: str, site_packages: str) -> int:
    """Compile every wheel that is a file in `wheels` and put the byte code beside its sources.

    Raises FileExistsError where an earlier try left its jobs or results, of which nothing is read.
    """
    leave_out_backends(Path(site_packages))
    for folder in (JOBS, RESULTS):
        folder.mkdir()
    WHEELS.symlink_to(wheels)
    for wheel in wheels.glob("*.whl"):
        sources = sources_of(wheel, prefix, site_packages)
        if sources:
            (JOBS / wheel.name).write_text(json.dumps(sources))
    jobs = sorted(job.name for job in JOBS.iterdir())
    code = subprocess.run([sys.executable, "-S", COMPILER, *jobs], check=False).returncode
    if code == 0:
        for job in as_installed(jobs):
            put_beside_sources(job)
    return code


def as_installed(wheels: list[str]) -> list[str]:
    """Return the wheels in the order in which pip was told to install them."""
    last = [line.split()[1] for line in LAST.read_text(encoding="utf-8").splitlines()]
    return sorted(wheels, key=lambda wheel: last.index(wheel) if wheel in last else -1)


def leave_out_backends(site_packages: Path) -> None:
    """Remove the build backend that some wheels bring, and its line from their RECORDs."""
    (site_packages / BUILD_BACKEND).unlink(missing_ok=True)
    for record in site_packages.glob("*.dist-info/RECORD"):
        text = record.read_text(encoding="utf-8")
        kept = [line for line in text.splitlines(keepends=True) if not line.startswith(f"{BUILD_BACKEND},")]
        record.write_text("".join(kept), encoding="utf-8", newline="")


def put_beside_sources(wheel: str) -> None:
    """Write the byte code of one wheel to `__pycache__` folders (PEP 3147), and leave none of what it lies over."""
    for _, path in json.loads((JOBS / wheel).read_bytes()):
        beside(path).unlink(missing_ok=True)
    with zipfile.ZipFile(RESULTS / wheel) as archive:
        for path in archive.namelist():
            beside(path).parent.mkdir(exist_ok=True)
            beside(path).write_bytes(archive.read(path))


def beside(source: str) -> Path:
    """Return where the byte code of a source lies."""
    path = Path(source)
    return path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc"


if __name__ == "__main__":
    sys.exit(compile_installed(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
