"""The GPU that a check ran on, and which kernels of the target it could not exercise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.document import Document

if TYPE_CHECKING:
    from builder.verify.oracle import Figures

FOUR_BIT_MAJOR = 10


class Gpu(Document):
    """A GPU as the driver describes it."""

    name: str
    capability: str
    memory_mib: int


class GpuFacts(Document):
    """The driver's version and its GPUs; both empty without a driver."""

    driver: str = ""
    gpus: tuple[Gpu, ...] = ()

    def figures(self) -> Figures:
        """Return what the verdict says of the GPU."""
        if not self.gpus:
            return {"gpu": "none", "gpus": 0}
        first = self.gpus[0]
        return {
            "gpu": first.name,
            "capability": first.capability,
            "gpu_memory_mib": first.memory_mib,
            "gpus": len(self.gpus),
            "driver": self.driver,
        }

    @property
    def has_four_bit_units(self) -> bool:
        """Whether the GPU multiplies NVFP4 numbers itself: Blackwell and later."""
        return any(int(gpu.capability.split(".", maxsplit=1)[0]) >= FOUR_BIT_MAJOR for gpu in self.gpus)


OF_A_SERVER = (
    "the server's own kernels: 4-bit matrix products, FP8 caches, sparse attention, fused experts, CUDA graphs"
)
FOUR_BIT = "4-bit tensor cores: below compute capability 10.0 NVFP4 weights are multiplied as 16-bit numbers (W4A16)"
