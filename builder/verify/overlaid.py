"""Files that are not those of their wheel but of another: whether that wheel may lie over theirs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.markers import Marker
from packaging.utils import canonicalize_name

from builder.lock.needs import lies_over, needed_packages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.verify.static_report import StaticReport


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlaid:
    """How many files rightly lie in the place of others, and sentences: one for each two wheels, one for each fault."""

    files: int
    notices: tuple[str, ...]
    problems: tuple[str, ...]


def judge_overlaid(report: StaticReport, asked: Sequence[str]) -> Overlaid:
    """Hold the files of other wheels than their own against what the wheels in the image require.

    `asked` is what the recipe asks for, with extras. What a wheel says of itself (`.dist-info`) no other may change.
    """
    files = [(one, path, owners) for one in report.distributions for path, owners in one.overlaid.items()]
    if not files:
        return Overlaid(files=0, notices=(), problems=())

    def applies(marker: str, extra: str) -> bool:
        return Marker(marker).evaluate({**report.markers, "extra": extra})

    needs = needed_packages(asked, {one.name: one.requires for one in report.distributions}, applies)
    pairs: Counter[str] = Counter()
    problems = []
    for one, path, owners in files:
        upper = next((owner for owner in owners if lies_over(owner, one.name, needs)), None)
        if upper is None or _is_metadata(path, one.name):
            other = f"not the bytes that its wheel recorded, but those of {' and '.join(owners)}"
            problems.append(f"{one.name} {one.version}: {path}: {other}, which may not lie over it")
        else:
            pairs[f"files of {one.name} are those of {upper}, which requires it"] += 1
    return Overlaid(
        files=pairs.total(),
        notices=tuple(f"notice: {count} {text}" for text, count in sorted(pairs.items())),
        problems=tuple(problems),
    )


def _is_metadata(path: str, name: str) -> bool:
    """Whether a path below site-packages lies in the folder where a distribution says what it is."""
    folder, _, inside = path.partition("/")
    own = folder.removesuffix(".dist-info")
    return bool(inside) and own != folder and canonicalize_name(own.rpartition("-")[0]) == name
