"""What the image says of itself: its environment variables and labels, from the recipe and the lock."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builder.lock.model import Lock
    from builder.recipe.model import Recipe

PREFIX = "/opt/env"
CACHE = "/var/cache/envbuild"
# Every just-in-time compiler of the field keeps its results here; none of them keys its cache by the whole stack,
# so the folder carries the lock's digest and a mounted cache can never serve another stack.
JIT_CACHES = {
    "CUDA_CACHE_PATH": "cuda",
    "CUTE_DSL_CACHE_DIR": "cute-dsl",
    "DG_JIT_CACHE_DIR": "deep-gemm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TILELANG_CACHE_DIR": "tilelang",
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
    "TRITON_CACHE_DIR": "triton",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
}


def image_environment(lock: Lock) -> dict[str, str]:
    """Return the environment variables of the image, sorted by name."""
    cache = f"{CACHE}/{lock.digest[:16]}"
    inherited = lock.file.base.environment if lock.file.base else {}
    path = inherited.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    variables = {
        **inherited,
        "LANG": "C.UTF-8",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "PATH": f"{PREFIX}/bin:{path}",
        "VIRTUAL_ENV": PREFIX,
        **{name: f"{cache}/{folder}" for name, folder in JIT_CACHES.items()},
    }
    return dict(sorted(variables.items()))


def one_line(text: str) -> str:
    """Return a text without line breaks and with single spaces, as a Dockerfile can hold it."""
    return " ".join(text.split())


def image_labels(recipe: Recipe, lock: Lock) -> dict[str, str]:
    """Return the labels of the image, sorted by name: title, clock, recipe, lock, target and the stack's versions.

    A package that is compiled here has no label of its own: its version is in the wheel's metadata.
    """
    stack = {f"dev.envbuild.stack.{wheel.name}": wheel.version for wheel in lock.wheels if wheel.name in recipe.stack}
    labels = {
        **(lock.file.base.labels if lock.file.base else {}),
        "dev.envbuild.lock": lock.digest,
        "dev.envbuild.recipe": recipe.name,
        "dev.envbuild.target": recipe.target.gpu,
        "org.opencontainers.image.created": datetime.fromtimestamp(lock.epoch, UTC).isoformat(),
        "org.opencontainers.image.description": one_line(recipe.description),
        "org.opencontainers.image.title": recipe.name,
        **({"dev.envbuild.driver": recipe.host.driver} if recipe.host else {}),
        **stack,
    }
    return dict(sorted((name, value) for name, value in labels.items() if value))
