"""The arithmetic of resources: GPU memory for weights and KV cache, memory for compilers, disk. All sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.preflight.knowledge.tables import Checkpoint, ModelFamily, model_table, package_table

if TYPE_CHECKING:
    from builder.preflight.pins import LockFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """How one GPU's memory is shared out; `kv_tokens` is how many tokens the KV cache holds, if known."""

    weights: int
    static: int
    headroom: int
    kv_tokens: int | None


def kv_bytes_per_token(family: ModelFamily, dtype: str) -> int | None:
    """Return the KV cache's bytes per token over all layers, or None for an unknown dtype.

    For GLM-5: 100,152 bytes in bf16, 55,224 in fp8.
    """
    size = model_table().kv_dtype_bytes.get(dtype)
    return None if size is None else family.layers * (family.kv_elements * size + family.indexer_bytes)


def weights_per_gpu(checkpoint: Checkpoint, family: ModelFamily, tensor_parallel: int) -> int:
    """Return the bytes of weights on each GPU: an even share, and what every GPU holds a copy of."""
    return checkpoint.bytes // tensor_parallel + family.replicated_bytes


def plan_memory(*, memory: int, fraction: float, weights: int, bytes_per_token: int | None) -> MemoryPlan:
    """Share out a GPU of `memory` bytes of which a server takes `fraction` for weights and KV cache."""
    usable = memory - model_table().driver_reserve
    static = int(usable * fraction)
    room = static - weights
    tokens = max(0, room // bytes_per_token) if bytes_per_token else None
    return MemoryPlan(weights=weights, static=static, headroom=usable - static, kv_tokens=tokens)


def disk_need(lock: LockFacts | None) -> int:
    """Return the disk that a build needs: wheels, layers and the image, from the lock's sizes or the usual peak."""
    packages = package_table()
    if lock is None or not lock.wheel_bytes:
        return packages.build_disk_peak
    return lock.wheel_bytes * packages.wheel_unpack_factor


def engine_disk_need(*, keeps_archives: bool) -> int:
    """Return the disk that an engine needs for the image of a full stack (sm120-glm5-cu130: 11.7 GB of files).

    The containerd image store keeps the layers' archives beside the files (`keeps_archives`).
    """
    need = package_table().image_disk
    return 2 * need if keeps_archives else need
