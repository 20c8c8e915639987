"""A root filesystem with this machine's own Python and nothing else, made offline in seconds."""

from __future__ import annotations

import re
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
_SKIPPED = {"__pycache__", "test", "idlelib", "tkinter", "ensurepip", "dist-packages", "site-packages"}


def system_python() -> str:
    """The version, as `3.13`, of the distribution's own Python."""
    version = re.fullmatch(r"python(3\.\d+)", Path("/usr/bin/python3").resolve().name)
    assert version is not None, "these tests need a distribution's python3 at /usr/bin"
    return version[1]


def write_rootfs(path: Path, *, programs: Iterable[Path] = ()) -> None:
    """Write a tar with Python, its standard library, and the shared libraries of both and of `programs`."""
    version = system_python()
    library = Path(f"/usr/lib/python{version}")
    files = {interpreter := Path(f"/usr/bin/python{version}"), *_library_files(library)}
    for binary in [interpreter, *programs, *library.glob("lib-dynload/*.so")]:
        listed = subprocess.run(["ldd", binary], check=False, capture_output=True, text=True).stdout
        files.update(Path(name) for name in _LIBRARY.findall(listed))
    # glibc loads it by name when a thread ends in `pthread_exit`, as a daemon thread of Python does at exit.
    files.update(file.with_name("libgcc_s.so.1") for file in [*files] if file.name == "libc.so.6")
    with tarfile.open(path, "w", dereference=True) as archive:
        for file in sorted(files):
            archive.add(file, filter=_owned_by_root)


def _library_files(library: Path) -> Iterator[Path]:
    for path in library.rglob("*"):
        if path.is_file() and not _SKIPPED.intersection(path.relative_to(library).parts):
            yield path


def _owned_by_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode = 0o755 if info.mode & 0o100 else 0o644
    return info
