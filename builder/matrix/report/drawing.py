"""Timelines as SVG: what ran when, as bars in rows; drawn for any width, in the colours of the page around it."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from builder.matrix.cellreport import CellReport, MatrixReport

ROW = 30
TOP = 22
STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800)
_MOST_TICKS = 5
_NARROWEST = 0.35  # percent


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A bar: its words, its start and length in seconds, how far it is indented, the state that gives its colour."""

    text: str
    start: float
    seconds: float
    depth: int = 0
    state: str = "step"


def build_timeline(cell: CellReport) -> str:
    """Return the picture of one cell's steps, in the order in which they began; empty where nothing was noted."""
    spans = sorted(cell.timeline, key=lambda span: (span.start, span.depth))
    bars = [Bar(text=span.text, start=span.start, seconds=span.seconds, depth=span.depth) for span in spans]
    return _drawn(bars, f"The steps of {cell.name}", ident=f"steps-{cell.name}")


def run_timeline(report: MatrixReport) -> str:
    """Return the picture of a whole run: a row for each cell that was run now, from the first start."""
    ran = [cell for cell in report.cells if cell.started is not None and not cell.known]
    if not ran:
        return ""
    zero = min(cell.started or 0.0 for cell in ran)
    bars = [
        Bar(
            text=f"{cell.name} · {cell.place}",
            start=(cell.started or 0.0) - zero,
            seconds=cell.minutes * 60,
            state=cell.state,
        )
        for cell in sorted(ran, key=lambda cell: (cell.started or 0.0, cell.name))
    ]
    return _drawn(bars, "When each cell ran, and on which engine", ident="run")


def shown_seconds(seconds: float) -> str:
    """Return a time as people read it, such as `1.4 s`, `2 min 5 s` or `3 h 2 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 and seconds != int(seconds) else f"{seconds:.0f} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min {left} s" if left else f"{minutes} min"


def _drawn(bars: Sequence[Bar], title: str, *, ident: str) -> str:
    if not bars:
        return ""
    whole = max(0.1, *(bar.start + bar.seconds for bar in bars))
    height = TOP + ROW * len(bars) + 4
    words = "; ".join(f"{bar.text}: {shown_seconds(bar.seconds)}" for bar in bars)
    name = escape(ident, quote=True)
    return "".join(
        [
            f'<svg class="timeline" role="img" aria-labelledby="{name}-t {name}-d" width="100%" height="{height}">',
            f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(words)}</desc>',
            *_axis(whole, height),
            *(part for row, bar in enumerate(bars) for part in _row(bar, row, whole)),
            "</svg>",
        ]
    )


def _axis(whole: float, height: int) -> Iterator[str]:
    step = next((step for step in STEPS if whole / step <= _MOST_TICKS), STEPS[-1])
    for count in range(int(whole / step) + 1):
        x = 100 * count * step / whole
        yield f'<line class="tick" x1="{x:.2f}%" x2="{x:.2f}%" y1="{TOP - 6}" y2="{height}"/>'
        if x < 94:
            yield f'<text class="time" x="{x:.2f}%" dx="3" y="11">{shown_seconds(count * step)}</text>'


def _row(bar: Bar, row: int, whole: float) -> Iterable[str]:
    top = TOP + ROW * row
    x = 100 * bar.start / whole
    width = max(100 * bar.seconds / whole, _NARROWEST)
    words = f'{escape(bar.text)} <tspan class="time">{shown_seconds(bar.seconds)}</tspan>'
    anchor, at = ("end", 100.0) if x > 55 else ("start", x)
    yield f'<text x="{at:.2f}%" y="{top + 12}" text-anchor="{anchor}">{words}</text>'
    yield (
        f'<rect class="bar {bar.state} d{min(bar.depth, 2)}" x="{min(x, 100 - width):.2f}%" y="{top + 17}" '
        f'width="{width:.2f}%" height="8" rx="2"/>'
    )
