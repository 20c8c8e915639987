"""The dynamic loader's search, without loading: which file a needed library is, as `man 8 ld.so` says."""

from __future__ import annotations

import os
import struct
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from builder.elf import Linkage, MalformedBinaryError, Symbols, open_elf

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

CACHE_FILE = Path("/etc/ld.so.cache")
CACHE_MAGIC = b"glibc-ld.so.cache1.1"
CACHE_HEADER = struct.Struct("<20sII20x")  # magic, count, size of the strings
CACHE_ENTRY = struct.Struct("<iIIIQ")  # flags, name, path, OS version, hardware
LIBRARY_64 = 0x0303  # x86-64 libraries of the C library's kind; 0x0a03 on 64-bit ARM
ARM_64 = 0x0A03
DEFAULT_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")


class Library:
    """One file with a dynamic section: where it is, what it links, and its symbols, read when first asked for."""

    def __init__(self, path: Path, linkage: Linkage) -> None:
        self.path = path
        self.linkage = linkage
        self._symbols: Symbols | None = None

    @property
    def symbols(self) -> Symbols:
        """What it gives and takes by name."""
        if self._symbols is None:
            with open_elf(self.path) as image:
                self._symbols = image.symbols()
        return self._symbols

    @property
    def soname(self) -> str:
        """The name that the loader knows it by."""
        return self.linkage.soname or self.path.name

    def folders(self) -> Iterator[Path]:
        """Yield the folders that it asks the loader to search."""
        for folder in self.linkage.runpath:
            origin = str(self.path.parent)
            yield Path(folder.replace("$ORIGIN", origin).replace("${ORIGIN}", origin))


class Loader:
    """Finds libraries as the loader of this image does, with the LD_LIBRARY_PATH of this process."""

    def __init__(self, cache: Path = CACHE_FILE, search: str = os.environ.get("LD_LIBRARY_PATH", "")) -> None:
        self._cache = dict(read_cache(cache))
        self._search = [Path(folder) for folder in search.split(":") if folder]

    def find(self, name: str, chain: Sequence[Library]) -> Library | None:
        """Return what `name` is for the last library of a chain, of which each one needed the next."""
        if "/" in name:
            return library_at(Path(name))
        for folder in self._folders(chain):
            found = library_at(folder / name)
            if found is not None:
                return found
        places = [self._cache[name]] if name in self._cache else []
        places += [Path(folder) / name for folder in DEFAULT_FOLDERS]
        return next((found for place in places if (found := library_at(place)) is not None), None)

    def _folders(self, chain: Sequence[Library]) -> Iterator[Path]:
        last = chain[-1]
        if last.linkage.inherited or not last.linkage.runpath:
            for library in reversed(chain):
                if library.linkage.inherited:
                    yield from library.folders()
        yield from self._search
        yield from last.folders()


def read_cache(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield names and paths of the loader's cache, the first of each name last, so that it stays in a dictionary."""
    data = path.read_bytes() if path.is_file() else b""
    start = data.find(CACHE_MAGIC)
    if start < 0:
        return
    _, count, _ = CACHE_HEADER.unpack_from(data, start)
    entries = [
        CACHE_ENTRY.unpack_from(data, start + CACHE_HEADER.size + index * CACHE_ENTRY.size) for index in range(count)
    ]
    for flags, name, place, *_ in reversed(entries):
        if flags in {LIBRARY_64, ARM_64}:
            yield text_at(data, start + name), Path(text_at(data, start + place))


def text_at(data: bytes, offset: int) -> str:
    """Return the zero-terminated text at an offset."""
    return data[offset : data.index(b"\0", offset)].decode()


@cache
def library_at(path: Path) -> Library | None:
    """Return the library in a file; None: there is none that a process of this machine could load."""
    return _read(path.resolve()) if path.is_file() else None


@cache
def _read(path: Path) -> Library | None:
    try:
        with open_elf(path) as image:
            return Library(path, image.linkage()) if image.has_dynamic_section else None
    except (MalformedBinaryError, OSError):
        return None


def closure(
    loader: Loader, roots: Iterable[Library], loaded: dict[str, Library]
) -> tuple[list[Library], dict[str, str]]:
    """Return the roots with all that they need, in load order, and by name what is nowhere, with the first to need it.

    `loaded` are libraries by soname that the process has loaded before: the loader takes those and searches no file.
    """
    order = {library.path: library for library in roots}
    chains: list[tuple[Library, ...]] = [(library,) for library in order.values()]
    names = {**loaded, **{library.soname: library for library in order.values()}}
    missing: dict[str, str] = {}
    for chain in chains:  # grows while it is walked: breadth first, as the loader goes
        for name in chain[-1].linkage.needed:
            found = names.get(name) or loader.find(name, chain)
            if found is None:
                missing.setdefault(name, chain[-1].path.name)
                continue
            names.setdefault(name, found)
            names.setdefault(found.soname, found)
            if found.path not in order:
                order[found.path] = found
                chains.append((*chain, found))
    return list(order.values()), missing
