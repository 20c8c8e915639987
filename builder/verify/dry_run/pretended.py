"""The libraries that play a GPU (native/*.c), compiled once with the C compiler at hand and kept in the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builder.document import key_of, sha256_file
from builder.errors import BuildFailedError
from builder.process import run

if TYPE_CHECKING:
    from builder.recipe.targets import GpuTarget
    from builder.store import Store

COMPILER = "cc"
FLAGS = ("-shared", "-fPIC", "-O1", "-fvisibility=default", "-s")
SOURCES = Path(__file__).with_name("native")
LIBRARIES = {
    "libcuda.so.1": "cuda_driver.c",
    "libpretended_cudart.so": "cuda_runtime.c",
    "libpretended_cublas.so": "cublas.c",
}
FOLDER = "pretended"  # among the files of a probe
# What the driver says where the recipe names none: newer than any PTX that a stack of today carries.
DRIVER_CUDA = "13.1"
KIND = "pretended-gpu"
# What a GPU that shares the host's memory is taken to have, in bytes (GB10: 128 GB in all).
SHARED_MEMORY = 120 * 10**9


def pretended_libraries(store: Store) -> dict[str, Path]:
    """Return the libraries by their path among the files of a probe; raise MissingProgramError without a C compiler."""
    sources = {path.name: sha256_file(path) for path in sorted(SOURCES.iterdir())}
    version = run((COMPILER, "--version")).text
    key = key_of([sources, FLAGS, version])
    with store.exclusive(f"{KIND}-{key}"):
        files = store.result(KIND, key)
        if files is None or not all(map(store.has, files.values())):
            files = _compiled(store)
            store.keep_result(KIND, key, files)
    return {f"{FOLDER}/{name}": store.sound(sha256) for name, sha256 in files.items()}


def _compiled(store: Store) -> dict[str, str]:
    files = {}
    with store.scratch() as folder:
        for name, source in LIBRARIES.items():
            out = folder / name
            done = run((COMPILER, *FLAGS, f"-Wl,-soname,{name}", "-o", str(out), str(SOURCES / source)))
            if done.code != 0:
                raise BuildFailedError(
                    f"{COMPILER} cannot compile {source}, a part of the pretended GPU",
                    evidence=tuple(done.text.splitlines()[-20:]),
                )
            files[name] = store.add(out)
    return files


def described(target: GpuTarget, driver_cuda: str | None) -> str:
    """Return a GPU as the libraries read it from ENVBUILD_GPU (native/pretended.h)."""
    major, minor = (driver_cuda or DRIVER_CUDA).split(".")
    numbers = (
        target.capability.replace(".", ""),
        target.shared_memory_per_block,
        target.shared_memory_per_sm,
        target.registers_per_sm,
        target.sms,
        target.memory or SHARED_MEMORY,
        int(major) * 1000 + int(minor) * 10,
    )
    return ";".join((*map(str, numbers), target.product))
