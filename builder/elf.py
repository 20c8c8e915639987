"""Reads what a 64-bit ELF file says of itself, its sections and what it links; trusts nothing that it reads."""

from __future__ import annotations

import contextlib
import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ELF_64_LITTLE = b"\x7fELF\x02\x01"
ELF_HEADER = struct.Struct(
    "<40xQ10xHHH"
)  # offset of the section headers; their size, count, and the index of the names
SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
DYNAMIC_ENTRY = struct.Struct("<qQ")
SYMBOL = struct.Struct("<IBBHQQ")  # name, kind and binding, visibility, section (0: another library's), value, size
VERSION_NEED = struct.Struct("<HHIII")  # version, number of names, library, offsets of the first name and the next need
VERSION_NAME = struct.Struct("<IHHII")  # hash, flags, index, name, offset of the next
SHT_DYNAMIC, SHT_NOBITS, SHT_DYNSYM, SHT_GNU_VERNEED = 6, 8, 11, 0x6FFFFFFE
SHN_UNDEF = 0
MANY_SECTIONS, NAMES_ELSEWHERE = 0, 0xFFFF
DT_NULL, DT_NEEDED, DT_SONAME, DT_RPATH, DT_RUNPATH = 0, 1, 14, 15, 29
LONGEST_TEXT = 4096


class MalformedBinaryError(ValueError):
    """A file is not the ELF file or fat binary that it looks like; the message names the file and the place."""


class Section(NamedTuple):
    """A section: its type, where its bytes are in the file, and the section it refers to (a string table, mostly)."""

    name: str
    kind: int
    offset: int
    size: int
    link: int

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.offset + self.size


@dataclass(frozen=True, kw_only=True, slots=True)
class Linkage:
    """What the dynamic section says: the library's own name, the names it needs, and the folders to search them in."""

    soname: str | None = None
    needed: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()


class ElfImage:
    """The bytes of an ELF file. Every read is checked: one outside the file raises MalformedBinaryError."""

    def __init__(self, data: bytes | mmap.mmap, name: str) -> None:
        self.data = data
        self.name = name
        if not is_elf(data[:6]):
            raise self.malformed(0, "not a 64-bit little-endian ELF file")
        self.sections = tuple(self._read_sections())

    def malformed(self, offset: int, problem: str) -> MalformedBinaryError:
        """Return the error for a problem at an offset of this file."""
        return MalformedBinaryError(f"{self.name}: offset {offset:#x}: {problem}")

    def unpack(self, layout: struct.Struct, offset: int) -> tuple[Any, ...]:
        """Return the numbers of a structure at an offset."""
        if not 0 <= offset <= len(self.data) - layout.size:
            raise self.malformed(offset, f"{layout.size} bytes expected, the file has {len(self.data)} in all")
        return layout.unpack_from(self.data, offset)

    def text(self, offset: int) -> str:
        """Return the zero-terminated text at an offset."""
        end = self.data.find(b"\0", offset, offset + LONGEST_TEXT) if 0 <= offset < len(self.data) else -1
        if end < 0:
            raise self.malformed(offset, "a zero-terminated text is expected")
        return self.data[offset:end].decode(errors="replace")

    def linkage(self) -> Linkage:
        """Return the dynamic section; a file without one needs nothing."""
        dynamic = next(self._sections_of(SHT_DYNAMIC), None)
        if dynamic is None:
            return Linkage()
        strings = self._strings_of(dynamic)
        texts = [(tag, strings + value) for tag, value in self._dynamic_entries(dynamic)]

        def all_of(wanted: int) -> tuple[str, ...]:
            return tuple(self.text(offset) for tag, offset in texts if tag == wanted)

        folders = all_of(DT_RUNPATH) or all_of(DT_RPATH)
        return Linkage(
            soname=next(iter(all_of(DT_SONAME)), None),
            needed=all_of(DT_NEEDED),
            runpath=tuple(part for text in folders for part in text.split(":") if part),
        )

    def version_needs(self) -> dict[str, tuple[str, ...]]:
        """Return the version names that each linked library must provide, such as `GLIBC_2.34` of `libc.so.6`."""
        needs: dict[str, list[str]] = {}
        for section in self._sections_of(SHT_GNU_VERNEED):
            strings, position = self._strings_of(section), section.offset
            while section.offset <= position < section.end:
                _, count, library, first, following = self.unpack(VERSION_NEED, position)
                names = self._version_names(position + first, count, strings)
                needs.setdefault(self.text(strings + library), []).extend(names)
                if following == 0:
                    break
                position += following
        return {library: tuple(sorted(names)) for library, names in needs.items()}

    def _version_names(self, position: int, count: int, strings: int) -> Iterator[str]:
        for _ in range(count):
            _, _, _, name, following = self.unpack(VERSION_NAME, position)
            yield self.text(strings + name)
            position += following

    def undefined_symbols(self) -> tuple[str, ...]:
        """Return the names that other libraries must provide, sorted."""
        found = set()
        for section in self._sections_of(SHT_DYNSYM):
            strings = self._strings_of(section)
            for offset in range(section.offset, section.end - SYMBOL.size + 1, SYMBOL.size):
                name, _, _, defined_in, _, _ = self.unpack(SYMBOL, offset)
                if name and defined_in == SHN_UNDEF:
                    found.add(self.text(strings + name))
        return tuple(sorted(found))

    def _sections_of(self, kind: int) -> Iterator[Section]:
        return (section for section in self.sections if section.kind == kind)

    def _strings_of(self, section: Section) -> int:
        """Return the offset of the string table that a section refers to."""
        if section.link >= len(self.sections):
            raise self.malformed(section.offset, f"section {section.name!r} has no string table")
        return self.sections[section.link].offset

    def _dynamic_entries(self, dynamic: Section) -> Iterator[tuple[int, int]]:
        for offset in range(dynamic.offset, dynamic.end, DYNAMIC_ENTRY.size):
            tag, value = self.unpack(DYNAMIC_ENTRY, offset)
            if tag == DT_NULL:
                return
            yield tag, value

    def _read_sections(self) -> Iterator[Section]:
        table, entry_size, count, names_index = self.unpack(ELF_HEADER, 0)
        if table == 0:
            return
        if entry_size < SECTION_HEADER.size:
            raise self.malformed(0, f"a section header of {entry_size} bytes")
        # Numbers that do not fit into the ELF header stand in the first section header.
        first = self.unpack(SECTION_HEADER, table)
        count = first[5] if count == MANY_SECTIONS else count
        names_index = first[6] if names_index == NAMES_ELSEWHERE else names_index
        names = self.unpack(SECTION_HEADER, table + names_index * entry_size)[4]
        for index in range(count):
            name, kind, _, _, offset, size, link, *_ = self.unpack(SECTION_HEADER, table + index * entry_size)
            section = Section(self.text(names + name), kind, offset, size, link)
            if kind != SHT_NOBITS and section.end > len(self.data):
                raise self.malformed(offset, f"section {section.name!r} ends after the file's {len(self.data)} bytes")
            yield section


def is_elf(start: bytes) -> bool:
    """Say whether a file that starts with these bytes is a 64-bit little-endian ELF file."""
    return start.startswith(ELF_64_LITTLE)


@contextlib.contextmanager
def open_elf(path: Path) -> Iterator[ElfImage]:
    """Map an ELF file; raise MalformedBinaryError if it is none."""
    with path.open("rb") as file:
        if not is_elf(file.read(6)):
            raise MalformedBinaryError(f"{path}: not a 64-bit little-endian ELF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield ElfImage(data, str(path))


def linkage(path: Path) -> Linkage:
    """Return what a library links; raise MalformedBinaryError."""
    with open_elf(path) as image:
        return image.linkage()
