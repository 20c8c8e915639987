"""Reads the CUDA fat binaries in a library's headers: for which GPUs it carries code, and whether a given GPU runs it.

The format is not documented. Its fields were found with nvcc 13.1 for every architecture suffix and compared with
cuobjdump entry by entry (docs/explanation/device-code.md).
"""

from __future__ import annotations

import ctypes
import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from builder.elf import SHT_NOBITS, ElfImage, MalformedBinaryError, Section, is_elf, open_elf

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

Kind = Literal["sass", "ptx"]
Suffix = Literal["", "a", "f"]

CONTAINER = struct.Struct("<IHHQ")  # magic, version, size of this header, size of all entries
MAGIC = struct.pack("<I", 0xBA55ED50)
VERSION, HEADER_SIZE = 1, CONTAINER.size
# kind, header size, padded size, compressed size, PTX version (minor, major), architecture, flags, unpacked size
ENTRY = struct.Struct("<HxxIQI4xHHI8xQ8xQ")
KINDS: dict[int, Kind] = {1: "ptx", 2: "sass"}
FLAG_A, FLAG_F, FLAG_LZ4, FLAG_ZSTD = 0x100000, 0x200000, 0x2000, 0x8000
FLAGS_COMPRESSED = FLAG_LZ4 | FLAG_ZSTD
PURE_SECTION, SEGMENT_SECTION = ".nv_fatbin", ".nvFatBinSegment"
EM_CUDA, CUBIN_ABI_13 = 190, 8
CUBIN_HEADER = struct.Struct("<8xB9xH28xI12x")  # ABI version, machine, flags
PTX_HEAD = 4096
PTX_VERSION = re.compile(rb"^\s*\.version\s+([0-9]+)\.([0-9]+)\s*$", re.MULTILINE)
PTX_TARGET = re.compile(rb"^\s*\.target\s+sm_([0-9]+)([af]?)\b", re.MULTILINE)
# Libraries beyond 2 GB of address range (libcufft) keep their fat binaries between other data.
MIXED_SECTIONS = (".ldata", ".lrodata")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCode:
    """One entry of a fat binary: machine code (`sass`) or PTX for an architecture such as 120, `a` or `f` or neither.

    `size` is what it takes in the file, in bytes; `isa` is the version of its PTX (None: machine code). `place` is its
    offset in the file, `unpacked` its size in bytes without the compression, which is LZ4 or else Zstandard.
    """

    kind: Kind
    arch: int
    suffix: Suffix = ""
    size: int = 0
    compressed: bool = False
    isa: tuple[int, int] | None = None
    place: int = field(default=0, compare=False, repr=False)
    unpacked: int = field(default=0, compare=False, repr=False)
    lz4: bool = field(default=False, compare=False, repr=False)

    @property
    def label(self) -> str:
        """The name that nvcc gives it, such as `sm_120a` or `compute_120`."""
        return f"{'sm' if self.kind == 'sass' else 'compute'}_{self.arch}{self.suffix}"


def device_code(path: Path) -> tuple[DeviceCode, ...] | None:
    """Return all code for GPUs that a library carries, in file order; None: it has no place for any.

    If a library registers fat binaries (its segment section says so) but its sections hold none, the whole file is
    searched. Raises MalformedBinaryError.
    """
    with open_elf(path) as image:
        sections = [section for section in image.sections if section.kind != SHT_NOBITS]
        registers = any(section.name.startswith(SEGMENT_SECTION) for section in sections)
        pure = [section for section in sections if section.name == PURE_SECTION]
        if not pure and not registers:
            return None
        found = [code for section in pure for code in _walk(image, section)]
        found += [code for section in sections if section.name in MIXED_SECTIONS for code in _search(image, section)]
        if not found and registers:
            found = list(_search(image, Section("", 0, 0, len(image.data), 0)))
        return tuple(found)


def _walk(image: ElfImage, section: Section) -> Iterator[DeviceCode]:
    """Yield the entries of a section that holds fat binaries and padding only."""
    position = image.data.find(MAGIC, section.offset, section.end)
    while position >= 0:
        codes, after = _container(image, position, section.end)
        yield from codes
        position = image.data.find(MAGIC, after, section.end)


def _search(image: ElfImage, section: Section) -> Iterator[DeviceCode]:
    """Yield the entries of the fat binaries between other data; bytes that only begin like one are no error."""
    position = image.data.find(MAGIC, section.offset, section.end)
    while position >= 0:
        try:
            codes, after = _container(image, position, section.end)
        except MalformedBinaryError:
            codes, after = [], position + len(MAGIC)
        yield from codes
        position = image.data.find(MAGIC, after, section.end)


def _container(image: ElfImage, start: int, limit: int) -> tuple[list[DeviceCode], int]:
    """Return the entries of the fat binary at `start`, and where it ends."""
    _, version, header, size = image.unpack(CONTAINER, start)
    if (version, header) != (VERSION, HEADER_SIZE):
        raise image.malformed(start, f"a fat binary of unknown version {version} with a header of {header} bytes")
    position, end = start + header, start + header + size
    if end > limit:
        raise image.malformed(start, f"a fat binary of {size} bytes, {limit - start - header} are left")
    codes = []
    while position + ENTRY.size <= end:
        kind, header, padded, compressed, minor, major, arch, flags, unpacked = image.unpack(ENTRY, position)
        after = position + header + padded
        if header < ENTRY.size or after > end:
            raise image.malformed(position, f"an entry of {header} + {padded} bytes, {end - position} are left")
        if kind in KINDS:
            is_compressed = bool(flags & FLAGS_COMPRESSED)
            codes.append(
                DeviceCode(
                    kind=KINDS[kind],
                    arch=arch,
                    suffix="a" if flags & FLAG_A else "f" if flags & FLAG_F else "",
                    size=compressed if is_compressed else padded,
                    compressed=is_compressed,
                    isa=(major, minor) if KINDS[kind] == "ptx" else None,
                    place=position + header,
                    unpacked=unpacked,
                    lz4=bool(flags & FLAG_LZ4),
                )
            )
        position = after
    return codes, end


def needed_code(capability: str) -> str:
    """Return the names of the code that a GPU runs: for `12.0` these are `sm_120, sm_120a/f or PTX <= 12.0`."""
    major, minor = (int(part) for part in capability.split("."))
    plain = f"sm_{major}{minor}" if minor == 0 else f"sm_{major}0 to sm_{major}{minor}"
    suffixes = "a/f" if major >= 10 else "a" if major == 9 else ""
    special = f", sm_{major}{minor}{suffixes}" if suffixes else ""
    return f"{plain}{special} or PTX <= {capability}"


def sorted_labels(labels: Iterable[str]) -> list[str]:
    """Return labels such as `sm_120a` in order: machine code first, oldest architecture first."""

    def order(label: str) -> tuple[bool, int, str]:
        kind, arch = label.split("_")
        return kind != "sm", int(arch.rstrip("af")), arch

    return sorted(labels, key=order)


def bare_code(path: Path) -> DeviceCode | None:
    """Return the code in a file that is itself one cubin or PTX text; None: it is neither.

    A cubin's suffix is in no field that can be trusted, so it counts as having none. Raises MalformedBinaryError.
    """
    with path.open("rb") as file:
        start = file.read(PTX_HEAD)
    if is_elf(start):
        return _cubin(start, path)
    version, target = PTX_VERSION.search(start), PTX_TARGET.search(start)
    if version is None or target is None:
        return None
    suffixes: dict[bytes, Suffix] = {b"": "", b"a": "a", b"f": "f"}
    return DeviceCode(
        kind="ptx",
        arch=int(target[1]),
        suffix=suffixes[target[2]],
        size=path.stat().st_size,
        isa=(int(version[1]), int(version[2])),
    )


def _cubin(start: bytes, path: Path) -> DeviceCode | None:
    if len(start) < CUBIN_HEADER.size:
        raise MalformedBinaryError(f"{path}: {len(start)} bytes, an ELF header has {CUBIN_HEADER.size}")
    abi, machine, flags = CUBIN_HEADER.unpack_from(start)
    if machine != EM_CUDA:
        return None
    # nvcc 13 (ABI 8) has the architecture in the second byte, older ones (ABI 7) in the first.
    arch = flags >> 8 & 0xFF if abi >= CUBIN_ABI_13 else flags & 0xFF
    return DeviceCode(kind="sass", arch=arch, size=path.stat().st_size)


def machine_code(path: Path, capability: str) -> Iterator[bytes | None]:
    """Yield the cubins of a library that a GPU of this capability loads; None for one that cannot be unpacked here.

    LZ4 and Zstandard are those of this machine (liblz4.so.1, libzstd.so.1). Raises MalformedBinaryError.
    """
    device = _device_number(capability)
    with open_elf(path) as image:
        for section in image.sections:
            if section.kind != SHT_NOBITS and section.name == PURE_SECTION:
                for code in _walk(image, section):
                    if code.kind == "sass" and _loads(code, device):
                        yield _unpacked(image.data[code.place : code.place + code.size], code)


def _unpacked(packed: bytes, code: DeviceCode) -> bytes | None:
    if not code.compressed:
        return packed
    try:
        library = ctypes.CDLL("liblz4.so.1" if code.lz4 else "libzstd.so.1")
    except OSError:
        return None
    out = ctypes.create_string_buffer(code.unpacked)
    if code.lz4:
        done = library.LZ4_decompress_safe(packed, out, len(packed), code.unpacked)
    else:
        library.ZSTD_decompress.restype = ctypes.c_size_t
        room, size = ctypes.c_size_t(code.unpacked), ctypes.c_size_t(len(packed))
        done = library.ZSTD_decompress(out, room, packed, size)
    return out.raw if done == code.unpacked else None


def runs_on(codes: Iterable[DeviceCode], capability: str, driver_cuda: str | None = None) -> Kind | None:
    """Say how a GPU of a compute capability such as `12.0` runs this code: its machine code, its PTX, or not (None).

    `driver_cuda` is the CUDA version of the driver, such as `13.0`: no driver compiles PTX that is newer than itself.
    Source: sections "Binary Compatibility", "PTX Compatibility" and "Family-Specific Features" of NVIDIA's CUDA C++
    Programming Guide.
    """
    device = _device_number(capability)
    newest_ptx = None if driver_cuda is None else _ptx_version(driver_cuda)
    usable = {code.kind for code in codes if _loads(code, device) and _compiles(code, newest_ptx)}
    return "sass" if "sass" in usable else "ptx" if usable else None


def _loads(code: DeviceCode, device: int) -> bool:
    if code.suffix == "a":
        return code.arch == device
    any_family = code.kind == "ptx" and code.suffix == ""
    return code.arch <= device and (any_family or code.arch // 10 == device // 10)


def _compiles(code: DeviceCode, newest_ptx: tuple[int, int] | None) -> bool:
    return code.isa is None or newest_ptx is None or code.isa <= newest_ptx


def _device_number(capability: str) -> int:
    if re.fullmatch(r"[0-9]{1,2}\.[0-9]", capability) is None:
        raise ValueError(f"not a compute capability such as 12.0: {capability!r}")
    return int(capability.replace(".", ""))


def _ptx_version(cuda: str) -> tuple[int, int]:
    """Return the newest PTX that a CUDA version reads (the release notes in NVIDIA's PTX ISA document)."""
    if re.fullmatch(r"[0-9]{2}\.[0-9]", cuda) is None:
        raise ValueError(f"not a CUDA version such as 13.0: {cuda!r}")
    major, minor = (int(part) for part in cuda.split("."))
    shared = 1 if major == 12 and minor >= 6 else 0  # CUDA 12.5 and 12.6 share PTX 8.5
    return major - 4, minor - shared
