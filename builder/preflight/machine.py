"""Facts of a machine in the words of the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builder.preflight.host import HostFacts
    from builder.preflight.pins import MaybeFacts
    from builder.recipe.targets import GpuTarget


def machine_facts(host: HostFacts, target: GpuTarget) -> MaybeFacts:
    """Return the facts about this machine; without a GPU those about GPUs stay unknown."""
    others = tuple(sorted({gpu.product for gpu in host.gpus if gpu.product != target.product}))
    return {
        "machine.driver": host.driver,
        "machine.memory": host.memory,
        "machine.disk-free": host.disk_free,
        "machine.shm": host.shm if host.gpus else None,
        "machine.gpus": sum(gpu.product == target.product for gpu in host.gpus) if host.gpus else None,
        "machine.other-gpus": others if host.gpus else None,
    }
