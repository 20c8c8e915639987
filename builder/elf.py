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
SYMBOL = struct.Struct("<IBBHQQ")  # name, binding and type, visibility, section, value, size
VERSIONS_GIVEN = struct.Struct("<HHHHIII")  # version, flags, index, names, hash, offset of the names, of the next
VERSIONS_NEEDED = struct.Struct("<HHIII")  # version, count, file, offset of the first version, of the next file
VERSION_NEEDED = struct.Struct("<IHHII")  # hash, flags, index, name, offset of the next
SHT_DYNAMIC, SHT_NOBITS, SHT_DYNSYM, SHT_VERDEF, SHT_VERNEED = 6, 8, 11, 0x6FFFFFFD, 0x6FFFFFFE
MANY_SECTIONS, NAMES_ELSEWHERE = 0, 0xFFFF
DT_NULL, DT_NEEDED, DT_SONAME, DT_RPATH, DT_RUNPATH = 0, 1, 14, 15, 29
STB_GLOBAL, STB_WEAK, STB_UNIQUE = 1, 2, 10
STV_INTERNAL, STV_HIDDEN = 1, 2
VER_FLG_WEAK = 2
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
    """What the dynamic section says: the library's own name, the names it needs, and the folders to search them in.

    `inherited`: the folders are an RPATH, which is searched for what the needed libraries need, too, and before
    LD_LIBRARY_PATH (`man 8 ld.so`).
    """

    soname: str | None = None
    needed: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    inherited: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Symbols:
    """What a library gives and takes by name; `versions` are given, `needed_versions` are pairs of file and version.

    Weak symbols and versions are in neither `undefined` nor `needed_versions`: the loader does without them.
    """

    defined: frozenset[str] = frozenset()
    undefined: frozenset[str] = frozenset()
    versions: frozenset[str] = frozenset()
    needed_versions: frozenset[tuple[str, str]] = frozenset()


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

    @property
    def has_dynamic_section(self) -> bool:
        """Whether the loader could load it: device code and object files are ELF files, too."""
        return any(self._of_kind(SHT_DYNAMIC))

    def linkage(self) -> Linkage:
        """Return the dynamic section; a file without one needs nothing."""
        dynamic = next(self._of_kind(SHT_DYNAMIC), None)
        if dynamic is None:
            return Linkage()
        strings = self._string_table(dynamic).offset
        texts = [(tag, strings + value) for tag, value in self._dynamic_entries(dynamic)]

        def all_of(wanted: int) -> tuple[str, ...]:
            return tuple(self.text(offset) for tag, offset in texts if tag == wanted)

        own = all_of(DT_RUNPATH)
        folders = own or all_of(DT_RPATH)
        return Linkage(
            soname=next(iter(all_of(DT_SONAME)), None),
            needed=all_of(DT_NEEDED),
            runpath=tuple(part for text in folders for part in text.split(":") if part),
            inherited=bool(folders) and not own,
        )

    def symbols(self) -> Symbols:
        """Return the names of the dynamic symbol table and the versions that go with them."""
        defined, undefined = set(), set()
        for section in self._of_kind(SHT_DYNSYM):
            strings = self._strings_of(section)
            for name, info, visibility, place, *_ in SYMBOL.iter_unpack(self._whole(section, SYMBOL.size)):
                if name == 0 or visibility & 3 in {STV_INTERNAL, STV_HIDDEN}:
                    continue
                if place and info >> 4 in {STB_GLOBAL, STB_WEAK, STB_UNIQUE}:
                    defined.add(_text_in(strings, name))
                elif not place and info >> 4 == STB_GLOBAL:
                    undefined.add(_text_in(strings, name))
        return Symbols(
            defined=frozenset(defined),
            undefined=frozenset(undefined - defined),
            versions=frozenset(self._versions_given()),
            needed_versions=frozenset(self._versions_needed()),
        )

    def _of_kind(self, kind: int) -> Iterator[Section]:
        return (section for section in self.sections if section.kind == kind)

    def _string_table(self, section: Section) -> Section:
        if section.link >= len(self.sections):
            raise self.malformed(section.offset, f"section {section.name!r} has no string table")
        return self.sections[section.link]

    def _strings_of(self, section: Section) -> bytes:
        strings = self._string_table(section)
        return bytes(self.data[strings.offset : strings.end])

    def _whole(self, section: Section, size: int) -> bytes:
        return bytes(self.data[section.offset : section.offset + section.size // size * size])

    def _versions_given(self) -> Iterator[str]:
        for section in self._of_kind(SHT_VERDEF):
            strings = self._strings_of(section)
            for start in self._chain(section, section.offset, VERSIONS_GIVEN):
                *_, names, _ = self.unpack(VERSIONS_GIVEN, start)
                yield _text_in(strings, *self.unpack(struct.Struct("<I"), start + names))

    def _versions_needed(self) -> Iterator[tuple[str, str]]:
        for section in self._of_kind(SHT_VERNEED):
            strings = self._strings_of(section)
            for start in self._chain(section, section.offset, VERSIONS_NEEDED):
                _, _, file, first, _ = self.unpack(VERSIONS_NEEDED, start)
                for place in self._chain(section, start + first, VERSION_NEEDED):
                    _, flags, _, name, _ = self.unpack(VERSION_NEEDED, place)
                    if not flags & VER_FLG_WEAK:
                        yield _text_in(strings, file), _text_in(strings, name)

    def _chain(self, section: Section, start: int, layout: struct.Struct) -> Iterator[int]:
        """Yield the offsets of structures whose last number is the distance to the next; never more than fit."""
        for _ in range(section.size // layout.size):
            yield start
            step = self.unpack(layout, start)[-1]
            if step == 0:
                return
            start += step

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


def _text_in(strings: bytes, offset: int) -> str:
    """Return the zero-terminated text at an offset of a string table; empty if it has none there."""
    return strings[offset : max(strings.find(b"\0", offset), offset)].decode(errors="replace")


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
