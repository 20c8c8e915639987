"""What compilations took, kept in the store: the next one knows how much memory a file needs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Self

from builder.document import Document
from builder.recipe.packages import known_package

if TYPE_CHECKING:
    from pathlib import Path

    from builder.engine import Exit
    from builder.store import Store

MEASURES = "measures"
FILE = "measures.json"
UNKNOWN_UNIT = 2 << 30  # a C++ file with many templates; what nvcc takes is in the packages' own data


class Measures(Document):
    """What a job took in all its attempts since it was last started.

    Times are in seconds, sizes in bytes: `unit_memory` of the largest single process, `peak_memory` of
    all together (what they share counts for each).
    An attempt that was killed as a whole has measured its time alone. `jobs` is how many ran at a time in the end.
    """

    name: str
    attempts: int = 0
    jobs: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory: int = 0
    unit_memory: int = 0
    cache_hits: int = 0
    cache_misses: int = 0

    def and_attempt(self, folder: Path, ended: Exit, jobs: int) -> Self:
        """Return the measures with one more attempt, whose own are in a file of `folder`, if it came to write it."""
        path = folder / FILE
        new = json.loads(path.read_bytes()) if path.is_file() else {}
        return self.model_copy(
            update={
                "attempts": self.attempts + 1,
                "jobs": jobs,
                "seconds": round(self.seconds + ended.seconds, 1),
                "cpu_seconds": round(self.cpu_seconds + new.get("cpu_seconds", 0), 1),
                "peak_memory": max(self.peak_memory, new.get("peak_memory", 0)),
                "unit_memory": max(self.unit_memory, new.get("unit_memory", 0)),
                "cache_hits": self.cache_hits + new.get("cache_hits", 0),
                "cache_misses": self.cache_misses + new.get("cache_misses", 0),
            }
        )

    @property
    def hit_rate(self) -> float | None:
        """The share of files that came from the compilers' cache, None where nothing asked it."""
        asked = self.cache_hits + self.cache_misses
        return self.cache_hits / asked if asked else None

    @property
    def is_telling(self) -> bool:
        """Whether the compilers worked: what comes from the cache needs no memory."""
        return (self.hit_rate or 0.0) < 0.5


def measures_of(key: str, store: Store) -> Measures | None:
    """Return what the job with this key took when it ran here."""
    record = store.result(MEASURES, key)
    return None if record is None else Measures.model_validate(record)


def keep_measures(key: str, measures: Measures, store: Store) -> None:
    """Keep what a job took."""
    store.keep_result(MEASURES, key, measures.to_plain())


def unit_memory(name: str, store: Store) -> int:
    """Return the bytes that one file under compilation takes: the most ever seen, else what is known, else a guess."""
    found = (measures_of(key, store) for kind, key in store.results() if kind == MEASURES)
    seen = max((one.unit_memory for one in found if one is not None and one.name == name and one.is_telling), default=0)
    return seen or known_package(name).memory_per_job or UNKNOWN_UNIT
