"""What `envbuild wheels` says of each wheel: where it came from, what it took, what its libraries carry and need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.build.measuring import measures_of
from builder.build.progress import shown_time
from builder.build.wheelscan import scan_wheel
from builder.sizes import shown_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.build.measuring import Measures
    from builder.build.wheelscan import ScannedLibrary, WheelScan
    from builder.build.wheelstage import MadeWheel
    from builder.lock.model import LockedWheel
    from builder.store import Store

MOST_LIBRARIES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelReport:
    """One wheel. `size` is in bytes; `key` and `measures` belong to wheels that were compiled from source."""

    name: str
    version: str
    sha256: str
    size: int
    origin: str
    scan: WheelScan
    key: str | None = None
    measures: Measures | None = None

    def to_plain(self, capability: str) -> dict[str, Any]:
        """Return the report as JSON values, each library with how a GPU of `capability` runs it."""
        known = {"key": self.key, "measures": self.measures.to_plain() if self.measures else None}
        return {
            "name": self.name,
            "version": self.version,
            "filename": self.scan.filename,
            "sha256": self.sha256,
            "bytes": self.size,
            "origin": self.origin,
            **{name: value for name, value in known.items() if value is not None},
            "libraries": [_plain(library, capability) for library in self.scan.libraries],
        }

    def lines(self, capability: str) -> Iterator[str]:
        """Yield the lines that people read."""
        yield f"{self.scan.filename} ({shown_bytes(self.size)}, {self.origin})"
        if self.measures is not None:
            yield f"  took {_took(self.measures)}"
        for library in self.scan.libraries[:MOST_LIBRARIES]:
            yield f"  {library.path}: {_carried(library, capability)}"
            yield f"    needs {_needed(library)}"
        more = len(self.scan.libraries) - MOST_LIBRARIES
        if more > 0:
            yield f"  … and {more} more libraries (--json has them all)"


def report_made(made: MadeWheel, store: Store) -> WheelReport:
    """Return the report of a wheel that was compiled, here or elsewhere."""
    path = store.sound(made.wheel.sha256)
    return WheelReport(
        name=made.wheel.name,
        version=made.wheel.version,
        sha256=made.wheel.sha256,
        size=path.stat().st_size,
        origin=made.origin,
        scan=scan_wheel(path, made.wheel.filename, store),
        key=made.job.key,
        measures=measures_of(made.job.key, store),
    )


def report_fetched(wheel: LockedWheel, store: Store) -> WheelReport:
    """Return the report of a wheel that the lock fetches; it must be in the store."""
    return WheelReport(
        name=wheel.name,
        version=wheel.version,
        sha256=wheel.sha256,
        size=wheel.size,
        origin="fetched",
        scan=scan_wheel(store.sound(wheel.sha256), wheel.filename, store),
    )


def _plain(library: ScannedLibrary, capability: str) -> dict[str, Any]:
    plain = library.to_plain()
    return {**plain, "codes": library.labels, "usable": library.runs_on(capability)}


def _took(measures: Measures) -> str:
    parts = [f"{shown_time(measures.seconds)}, {shown_time(measures.cpu_seconds)} of processors"]
    parts.append(f"{shown_bytes(measures.peak_memory)} of memory at {measures.jobs} at a time")
    if measures.hit_rate is not None:
        asked = measures.cache_hits + measures.cache_misses
        parts.append(f"{measures.cache_hits} of {asked} files from the compilers' cache")
    if measures.attempts > 1:
        parts.append(f"{measures.attempts} attempts")
    return ", ".join(parts)


def _carried(library: ScannedLibrary, capability: str) -> str:
    if library.error is not None:
        return f"cannot be read ({library.error})"
    if not library.codes:
        return "no device code"
    how = {"sass": "runs on", "ptx": "compiled at first use on", None: "not for"}
    carried = ", ".join(f"{count} {label}" for label, count in library.labels.items())
    return f"{carried}: {how[library.runs_on(capability)]} {capability}"


def _needed(library: ScannedLibrary) -> str:
    floors = [f"{family} {version}" for family, version in sorted(library.floors.items())]
    abi = {True: ", new strings (cxx11 ABI)", False: ", old strings (not the cxx11 ABI)", None: ""}[library.cxx11_abi]
    torch = [f"{len(library.torch_symbols)} symbols of torch{abi}"] if library.torch_symbols else []
    return "; ".join([", ".join(library.needed) or "no library", *floors, *torch])
