"""The table of GPU targets: what a kernel, a compiler and a memory plan must know of each GPU, with sources."""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import yaml
from pydantic import Field

from builder.document import Document, pretty_json
from builder.errors import InvalidDocumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

TABLE = Path(__file__).with_name("targets.yaml")
Family = Literal["ampere", "ada", "hopper", "blackwell-datacenter", "blackwell"]
Interconnect = Literal["pcie", "nvlink", "none"]


class SourceOfFact(Document):
    """Where a fact was learned, and how sure that makes it."""

    certainty: Literal["read", "seen", "general"]
    text: str


class GpuTarget(Document):
    """One GPU: sizes are in bytes; `memory` is None where the GPU shares the host's memory; `sources` is by field."""

    id: str
    product: str
    capability: str
    family: Family
    shared_memory_per_block: int
    shared_memory_per_sm: int
    registers_per_sm: int
    sms: int
    memory: int | None
    interconnect: Interconnect
    first_driver: str
    first_nvcc: str
    sources: dict[str, SourceOfFact]

    @property
    def arch(self) -> str:
        """The name that compilers use, such as `sm_120`."""
        return "sm_" + self.capability.replace(".", "")

    @property
    def major(self) -> int:
        """The first number of the compute capability."""
        return int(self.capability.split(".", maxsplit=1)[0])


class _SharedMemory(Document):
    per_block: int
    per_sm: int


class _Architecture(Document):
    family: Family
    shared_memory: _SharedMemory
    registers_per_sm: int
    first_nvcc: str
    first_driver: str
    sources: dict[str, str]


class _Gpu(Document):
    product: str
    capability: str
    sms: int
    memory: int | None
    interconnect: Interconnect
    sources: dict[str, str]


class _Table(Document):
    sources: dict[str, SourceOfFact]
    architectures: dict[str, _Architecture] = Field(min_length=1)
    gpus: dict[str, _Gpu] = Field(min_length=1)


@cache
def targets() -> Mapping[str, GpuTarget]:
    """Return every known GPU by its id, in the order of the table."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    plain = yaml.load(TABLE.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - a safe loader, our own file
    table = _Table.from_json(pretty_json(plain), source=TABLE.name)
    return {name: _target(name, gpu, table) for name, gpu in table.gpus.items()}


def find_target(gpu: str) -> GpuTarget:
    """Return the GPU with this id; raise InvalidDocumentError that names the nearest one."""
    found = targets().get(gpu)
    if found is None:
        raise InvalidDocumentError(f"target.gpu: no GPU {gpu!r} is known ({find_nearest_target(gpu)})")
    return found


def find_nearest_target(gpu: str) -> str:
    """Return advice about a GPU id that does not exist: the nearest one, else all of them."""
    close = difflib.get_close_matches(gpu.lower().replace(" ", "-").replace("_", "-"), targets(), n=1, cutoff=0.65)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(targets())}"


def find_product(product: str) -> GpuTarget | None:
    """Return the GPU that the driver calls by this product name, or None."""
    return next((target for target in targets().values() if target.product == product), None)


def _target(name: str, gpu: _Gpu, table: _Table) -> GpuTarget:
    architecture = table.architectures[gpu.capability]
    sources = {field: table.sources[key] for field, key in {**architecture.sources, **gpu.sources}.items()}
    shared = sources.pop("shared_memory")
    return GpuTarget(
        id=name,
        product=gpu.product,
        capability=gpu.capability,
        family=architecture.family,
        shared_memory_per_block=architecture.shared_memory.per_block,
        shared_memory_per_sm=architecture.shared_memory.per_sm,
        registers_per_sm=architecture.registers_per_sm,
        sms=gpu.sms,
        memory=gpu.memory,
        interconnect=gpu.interconnect,
        first_driver=architecture.first_driver,
        first_nvcc=architecture.first_nvcc,
        sources={**sources, "shared_memory_per_block": shared, "shared_memory_per_sm": shared},
    )
