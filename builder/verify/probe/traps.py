"""Kernels that exist for the target and only trap: CUTLASS main loops of another architecture, by their opcodes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.elf import ElfImage, MalformedBinaryError
from builder.fatbin import machine_code

if TYPE_CHECKING:
    from pathlib import Path

# The low 12 bits of the first word of each 16-byte instruction, sm_70 and newer; found with nvdisasm.
OPCODE, INSTRUCTION_WORDS = 0xFFF, 2
BREAKPOINT_TRAP = 0x95C
TENSOR_CORE = frozenset({0x237, 0x23C, 0x23D, 0x23F, 0x27A, 0x47A, 0x47F})  # IMMA HMMA BMMA DMMA QMMA QMMA OMMA
CODE = ".text."
# Tags of the architecture in the names of CUTLASS kernels. Other kernels trap for good reason, such as a found NaN.
TAGGED = re.compile(r"cutlass.*Sm(90|100|103)(?![0-9])", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Traps:
    """How many kernels a library has for the target, which of them only trap, how many cubins could not be read."""

    kernels: int
    trapping: tuple[str, ...]
    unread: int


def find_traps(library: Path, capability: str) -> Traps:
    """Return the kernels of CUTLASS that contain a trap and no instruction of the tensor cores."""
    unread, own = 0, capability.replace(".", "")
    kernels: set[str] = set()
    trapping: set[str] = set()
    for cubin in machine_code(library, capability):
        try:
            image = ElfImage(cubin, str(library)) if cubin is not None else None
        except MalformedBinaryError:
            image = None
        if image is None:
            unread += 1
            continue
        for section in image.sections:
            if section.name.startswith(CODE):
                name = section.name.removeprefix(CODE)
                kernels.add(name)
                tag = TAGGED.search(name)
                if tag is not None and tag[1] != own and only_traps(image, section.offset, section.size):
                    trapping.add(name)
    return Traps(kernels=len(kernels), trapping=tuple(sorted(trapping)), unread=unread)


def only_traps(image: ElfImage, start: int, size: int) -> bool:
    """Say whether code traps somewhere and multiplies nowhere."""
    words = memoryview(bytes(image.data[start : start + size // 16 * 16])).cast("Q")
    opcodes = {word & OPCODE for word in words[::INSTRUCTION_WORDS]}
    return BREAKPOINT_TRAP in opcodes and not opcodes & TENSOR_CORE
