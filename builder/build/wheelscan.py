"""What the libraries of a wheel carry and need: device code, other libraries, versions of glibc, torch's symbols."""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from typing import TYPE_CHECKING, Literal

from builder.document import Document, canonical_json
from builder.elf import MalformedBinaryError, is_elf, open_elf
from builder.errors import BuildFailedError
from builder.fatbin import DeviceCode, device_code, needed_code, runs_on, sorted_labels

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from builder.elf import ElfImage
    from builder.store import Store

SCAN = "wheel-scan"
LAYOUT = 1
FLOORS = ("GLIBC", "GLIBCXX", "CXXABI")
# Mangled names (Itanium C++ ABI, 5.1) in the namespaces at, c10, torch and caffe2, and c10's C functions.
TORCH_SYMBOL = re.compile(r"_Z(?:N[KVrO]*|T[IVS]N?)(?:2at|3c10|5torch|6caffe2)|c10_|THP")
NEW_ABI, OLD_ABI = "__cxx11", re.compile(r"S[sS]|RKSs")


class ScannedCode(Document):
    """Device code of one kind in a library: `count` entries with the same architecture and version of PTX."""

    kind: Literal["sass", "ptx"]
    arch: int
    suffix: Literal["", "a", "f"] = ""
    isa: tuple[int, int] | None = None
    count: int

    @property
    def code(self) -> DeviceCode:
        """One of the entries."""
        return DeviceCode(kind=self.kind, arch=self.arch, suffix=self.suffix, isa=self.isa)


class ScannedLibrary(Document):
    """A library of a wheel. `floors` are the newest versions of glibc's and libstdc++'s names that it needs.

    `torch_symbols` are the names that torch's libraries must provide, `cxx11_abi` whether those use the new strings.
    `error` says why it could not be read.
    """

    path: str
    codes: tuple[ScannedCode, ...] = ()
    needed: tuple[str, ...] = ()
    floors: dict[str, str] = {}
    torch_symbols: tuple[str, ...] = ()
    cxx11_abi: bool | None = None
    error: str | None = None

    @property
    def labels(self) -> dict[str, int]:
        """How many entries there are of each architecture, such as `sm_120a`, oldest machine code first."""
        counts: Counter[str] = Counter()
        for code in self.codes:
            counts[code.code.label] += code.count
        return {label: counts[label] for label in sorted_labels(counts)}

    def runs_on(self, capability: str) -> Literal["sass", "ptx"] | None:
        """Say how a GPU runs the library's code: as machine code, as PTX, or not."""
        return runs_on((code.code for code in self.codes), capability)


class WheelScan(Document):
    """The libraries of a wheel that carry or need anything, by path."""

    filename: str
    libraries: tuple[ScannedLibrary, ...]

    def idle(self, capability: str) -> tuple[ScannedLibrary, ...]:
        """Return the libraries with device code of which none runs on a GPU; empty if one does, or none has any."""
        carrying = tuple(library for library in self.libraries if library.codes)
        return () if any(library.runs_on(capability) for library in carrying) else carrying


def scan_wheel(path: Path, filename: str, store: Store) -> WheelScan:
    """Scan a wheel of the store, named by its sha256; what was seen is kept. No code of it is run."""
    record = store.result(SCAN, path.name)
    if record is not None and record.get("layout") == LAYOUT:
        return WheelScan.from_json(canonical_json(record["scan"]), source=filename)
    scan = WheelScan(filename=filename, libraries=tuple(_libraries(path, store)))
    store.keep_result(SCAN, path.name, {"layout": LAYOUT, "scan": scan.to_plain()})
    return scan


def idle_failure(scan: WheelScan, capability: str, target: str) -> BuildFailedError | None:
    """Return the error for a wheel that carries device code, but none that the target runs; None for any other."""
    idle = scan.idle(capability)
    if not idle:
        return None
    carried = f"{idle[0].path} carries {', '.join(idle[0].labels)} only"
    return BuildFailedError(
        f"{scan.filename}: {carried}; the target {target} ({capability}) needs {needed_code(capability)}",
        remedy=f'compile it for the target: `archs: ["{capability}"]` in its `build` section, or leave `archs` out',
        evidence=tuple(f"{library.path}: {', '.join(library.labels)}" for library in idle),
    )


def _libraries(wheel: Path, store: Store) -> Iterable[ScannedLibrary]:
    with zipfile.ZipFile(wheel) as archive, store.scratch() as scratch:
        for info in sorted(archive.infolist(), key=lambda info: info.filename):
            with archive.open(info) as file:
                if not is_elf(file.read(6)):
                    continue
            place = scratch / "library"
            with store.room():
                place.write_bytes(archive.read(info))
            yield _library(info.filename, place)


def _library(name: str, place: Path) -> ScannedLibrary:
    try:
        codes = device_code(place) or ()
        with open_elf(place) as image:
            return _described(name, codes, image)
    except MalformedBinaryError as error:
        return ScannedLibrary(path=name, error=str(error).replace(str(place), name))


def _described(name: str, codes: tuple[DeviceCode, ...], image: ElfImage) -> ScannedLibrary:
    linked = image.symbols()
    symbols = tuple(sorted(symbol for symbol in linked.undefined if TORCH_SYMBOL.match(symbol)))
    return ScannedLibrary(
        path=name,
        codes=_counted(codes),
        needed=image.linkage().needed,
        floors=_floors(version for _, version in linked.needed_versions),
        torch_symbols=symbols,
        cxx11_abi=_abi(symbols),
    )


def _counted(codes: Iterable[DeviceCode]) -> tuple[ScannedCode, ...]:
    counts = Counter((code.kind == "ptx", code.arch, code.suffix, code.isa or ()) for code in codes)
    return tuple(
        ScannedCode(kind="ptx" if is_ptx else "sass", arch=arch, suffix=suffix, isa=isa or None, count=count)
        for (is_ptx, arch, suffix, isa), count in sorted(counts.items())
    )


def _floors(versions: Iterable[str]) -> dict[str, str]:
    """Return the newest version of each family, of names such as GLIBC_2.34; private ones say nothing."""
    newest: dict[str, tuple[int, ...]] = {}
    for version in versions:
        family, _, number = version.partition("_")
        if family in FLOORS and re.fullmatch(r"[0-9.]+", number):
            newest[family] = max(newest.get(family, ()), tuple(map(int, number.split("."))))
    return {family: ".".join(map(str, newest[family])) for family in FLOORS if family in newest}


def _abi(symbols: Iterable[str]) -> bool | None:
    """Return whether strings in the symbols are the new ones (std::__cxx11), None where no symbol has a string."""
    names = tuple(symbols)
    if any(NEW_ABI in name for name in names):
        return True
    return False if any(OLD_ABI.search(name) for name in names) else None
