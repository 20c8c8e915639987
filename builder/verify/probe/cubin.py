"""What a compiled kernel takes of a processor, as its cubin says: registers, spilled bytes, threads."""

from __future__ import annotations

import struct

from builder.elf import ElfImage

EIFMT_SVAL = 4
EIATTR_REGCOUNT, EIATTR_FRAME_SIZE = 0x2F, 0x11
SYMBOL_SIZE = 24
WARP = 32
MOST_THREADS = 1024


def most_threads(registers: int, per_sm: int) -> int:
    """Return how many threads a block may have: registers are given to whole warps, 256 at a time."""
    per_warp = -(-max(registers, 1) * WARP // 256) * 256
    return min(MOST_THREADS, per_sm // per_warp // 4 * 4 * WARP)


def resources(cubin: bytes, name: str) -> tuple[int, int]:
    """Return a kernel's registers and its stack frame (what it spills, in bytes a thread), from `.nv.info`."""
    image = ElfImage(cubin, name)
    sections = {section.name: section for section in image.sections}
    if ".nv.info" not in sections or ".symtab" not in sections:
        return 0, 0
    info, table = sections[".nv.info"], sections[".symtab"]
    strings = image.sections[table.link].offset
    found, place = {EIATTR_REGCOUNT: 0, EIATTR_FRAME_SIZE: 0}, info.offset
    while place + 4 <= info.end:
        form, attribute, size = struct.unpack_from("<BBH", cubin, place)
        if form == EIFMT_SVAL and attribute in found and size == 8:
            symbol, value = struct.unpack_from("<II", cubin, place + 4)
            (offset,) = struct.unpack_from("<I", cubin, table.offset + symbol * SYMBOL_SIZE)
            if image.text(strings + offset) == name:
                found[attribute] = value
        place += 4 + (size if form == EIFMT_SVAL else 0)
    return found[EIATTR_REGCOUNT], found[EIATTR_FRAME_SIZE]
