"""Kernels that only trap, in libraries made here: a cubin in a fat binary, plain and compressed with LZ4."""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING

import pytest

from builder.fatbin import MAGIC
from builder.verify.probe.traps import find_traps

if TYPE_CHECKING:
    from pathlib import Path

TRAP, MULTIPLY, ADD = 0x95C, 0x23C, 0x210
FOREIGN = "_ZN7cutlass13device_kernelIN4gemm29MainloopSm100TmaUmmaWarpSpecEEEvv"


def elf(sections: dict[str, bytes], machine: int) -> bytes:
    """An ELF file of these sections, their names last."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in [*sections, ".shstrtab"])
    contents = [*sections.values(), names]
    count = len(contents) + 1
    headers, body, name = bytes(64), b"", 1
    for title, data in zip([*sections, ".shstrtab"], contents, strict=True):
        place = 64 + 64 * count + len(body)
        headers += struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, place, len(data), 0, 0, 1, 0)
        body, name = body + data, name + len(title) + 1
    start = (b"\x7fELF\x02\x01" + bytes(12) + struct.pack("<H", machine)).ljust(40, b"\0")
    start += struct.pack("<Q10xHHH", 64, 64, count, count - 1)
    return start.ljust(64, b"\0") + headers + body


def kernel(*opcodes: int) -> bytes:
    return b"".join(struct.pack("<QQ", 0xABCDE000 | opcode, 0) for opcode in opcodes)


def library(kernels: dict[str, bytes], *, arch: int = 120, lz4: bool = False) -> bytes:
    cubin = elf({f".text.{name}": code for name, code in kernels.items()}, machine=190)
    payload, flags, packed = cubin, 0, 0
    if lz4:
        room = ctypes.create_string_buffer(2 * len(cubin) + 64)
        packed = ctypes.CDLL("liblz4.so.1").LZ4_compress_default(cubin, room, len(cubin), len(room))
        payload, flags = room.raw[:packed], 0x2000
    entry = struct.pack("<HxxIQI4xHHI8xQ8xQ", 2, 64, len(payload), packed, 0, 0, arch, flags, len(cubin)) + payload
    return elf({".nv_fatbin": MAGIC + struct.pack("<HHQ", 1, 16, len(entry)) + entry}, machine=62)


def has_lz4() -> bool:
    try:
        ctypes.CDLL("liblz4.so.1")
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "lz4", [False, pytest.param(True, marks=pytest.mark.skipif(not has_lz4(), reason="needs liblz4.so.1"))]
)
def test_a_main_loop_of_another_architecture_that_only_traps_is_found(tmp_path: Path, lz4: bool) -> None:
    kernels = {FOREIGN: kernel(ADD, TRAP), "plain_add": kernel(ADD, ADD)}
    (tmp_path / "k.so").write_bytes(library(kernels, lz4=lz4))
    found = find_traps(tmp_path / "k.so", "12.0")
    assert (found.kernels, found.trapping, found.unread) == (2, (FOREIGN,), 0)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (FOREIGN, kernel(ADD, TRAP, MULTIPLY)),
        (FOREIGN, kernel(ADD, ADD)),
        (FOREIGN.replace("Sm100", "Sm120"), kernel(ADD, TRAP)),
        ("_ZN2at6native11checkForNaNEv", kernel(TRAP)),
    ],
)
def test_kernels_that_work_or_trap_for_good_reason_are_none(tmp_path: Path, name: str, code: bytes) -> None:
    (tmp_path / "k.so").write_bytes(library({name: code}))
    assert find_traps(tmp_path / "k.so", "12.0").trapping == ()


def test_code_for_other_gpus_is_not_looked_into(tmp_path: Path) -> None:
    (tmp_path / "k.so").write_bytes(library({FOREIGN: kernel(TRAP)}, arch=100))
    assert find_traps(tmp_path / "k.so", "12.0").kernels == 0
    assert find_traps(tmp_path / "k.so", "10.0").kernels == 1


def test_a_main_loop_of_the_target_itself_is_none(tmp_path: Path) -> None:
    (tmp_path / "k.so").write_bytes(library({FOREIGN: kernel(TRAP)}, arch=100))
    assert find_traps(tmp_path / "k.so", "10.0").trapping == ()
