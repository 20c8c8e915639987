"""The environment of a process that meets a pretended GPU, or its driver without a GPU."""

from __future__ import annotations

from pathlib import Path

RUNTIME, BLAS = "libpretended_cudart.so", "libpretended_cublas.so"


def with_driver(folder: str) -> dict[str, str]:
    """Return the variables of a process that finds a driver's library, which finds no GPU."""
    return {"LD_LIBRARY_PATH": folder}


def with_gpu(folder: str, gpu: str, log: str = "") -> dict[str, str]:
    """Return the variables of a process that finds the GPU which the text `gpu` describes.

    `log` is where the pretended GPU writes what was launched.
    """
    return {
        **with_driver(folder),
        "LD_PRELOAD": " ".join(str(Path(folder) / name) for name in (RUNTIME, BLAS)),
        "ENVBUILD_GPU": gpu,
        "ENVBUILD_DRY_LOG": log,
    }
