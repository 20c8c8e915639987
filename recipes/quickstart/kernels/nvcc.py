"""The commands that compile the kernels: lists made from the architectures and the CUDA toolkit, run by setup.py."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ARCHITECTURES = "TORCH_CUDA_ARCH_LIST"
ARCHITECTURE = re.compile(r"(?P<major>[0-9]{1,2})\.(?P<minor>[0-9])(?P<suffix>[af]?)(?P<ptx>\+PTX)?")
# Without exceptions and guarded statics the launch stubs need no libstdc++; only the C ABI is exported.
COMPILE_FLAGS = (
    "-O3",
    "-std=c++17",
    "--Werror=all-warnings",
    "-Xcompiler=-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics",
)
# Stripped: symbols named after the compiler's temporary files would make each build different.
LINK_FLAGS = (
    "-shared",
    "-s",
    "-Wl,--build-id=none",
    "-Wl,--as-needed",
    "-Wl,-z,defs",
    "-Wl,-z,relro,-z,now",
    "-Wl,-soname,libnvfp4.so",
    "-Wl,-rpath,$ORIGIN/../nvidia/cu13/lib",
)


class CannotCompileError(SystemExit):
    """Something that the compilation needs is missing; the message says what."""


def gencode_flags(architectures: str) -> list[str]:
    """Return nvcc's flags for `9.0;12.0a;12.0f+PTX`: machine code for each, PTX only where `+PTX` asks for it."""
    flags = []
    for item in filter(None, re.split(r"[;,\s]+", architectures)):
        match = ARCHITECTURE.fullmatch(item)
        if match is None:
            raise CannotCompileError(
                f"{ARCHITECTURES}: {item!r} is not an architecture such as 12.0, 12.0a, 12.0f or 12.0+PTX"
            )
        number = match["major"] + match["minor"] + match["suffix"]
        code = f"[sm_{number},compute_{number}]" if match["ptx"] else f"sm_{number}"
        flags += ["-gencode", f"arch=compute_{number},code={code}"]
    if not flags:
        raise CannotCompileError(f"set {ARCHITECTURES} to the architectures to compile for, such as 12.0")
    return flags


def toolkit(environment: Mapping[str, str]) -> Path:
    """Return the folder of the CUDA toolkit: $CUDA_HOME, else the one of the nvcc in PATH."""
    home = environment.get("CUDA_HOME")
    nvcc = shutil.which("nvcc", path=f"{home}/bin" if home else environment.get("PATH"))
    if nvcc is None:
        place = f"{home}/bin" if home else "PATH"
        raise CannotCompileError(f"no nvcc in {place}: set CUDA_HOME to the folder of a CUDA toolkit")
    return Path(nvcc).resolve().parent.parent


def cuda_runtime(home: Path) -> Path:
    """Return the shared CUDA runtime to link, by its soname: the toolkit's wheels have no `libcudart.so`."""
    found = [path for folder in ("lib64", "lib") for path in sorted((home / folder).glob("libcudart.so.[0-9]*"))]
    if not found:
        raise CannotCompileError(
            f"no libcudart.so.* in {home}/lib or {home}/lib64: set CUDA_HOME to the folder of a CUDA toolkit"
        )
    return min(found, key=lambda path: len(path.name))


def compile_command(home: Path, source: str, target: Path, architectures: str) -> list[str]:
    """Return the nvcc command that turns one `.cu` into an object file."""
    flags = [*COMPILE_FLAGS, *gencode_flags(architectures)]
    return [str(home / "bin" / "nvcc"), "-c", *flags, source, "-o", str(target)]


def link_command(home: Path, objects: Sequence[Path], target: Path) -> list[str]:
    """Return the host compiler's command that links the library: nvcc's link step writes the toolkit's path into it."""
    return ["g++", *LINK_FLAGS, *map(str, objects), str(cuda_runtime(home)), "-o", str(target)]
