"""A comparison as people read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from builder.sizes import shown_bytes, shown_delta

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from builder.compare.comparison import Comparison, ImageComparison, LayerFacts
    from builder.lock.changes import PackageChange, PackageState

STYLES = {"added": "green", "removed": "red", "changed": "yellow"}
TITLE_CHARACTERS = 80
ID_CHARACTERS = 19


def comparison_table(comparison: Comparison) -> RenderableType:
    """Return a comparison as tables: packages, totals, and for images layers and settings."""
    parts: list[RenderableType] = []
    if comparison.same and comparison.silence is None:
        parts.append(Text("nothing differs"))
    if comparison.silence is not None:
        parts.append(Text(f"packages are not known: {comparison.silence}", style="yellow"))
    if comparison.packages:
        parts.append(_packages(comparison))
    if comparison.totals:
        parts.append(_totals(comparison))
    if comparison.images is not None:
        parts += [_layers(comparison.images), *_settings(comparison.images)]
    return Group(*parts)


def _table(*headings: str, right: Iterable[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, overflow="fold", justify="right" if heading in right else "left")
    return table


def _packages(comparison: Comparison) -> Table:
    table = _table("world", "package", comparison.a, comparison.b, "bytes", right=("bytes",))
    for change in comparison.packages or ():
        size = _size_change(change) if comparison.comparable else ""
        name = Text(change.name, style=STYLES[change.kind])
        table.add_row(change.place, name, _version(change.before), _version(change.after), size)
    return table


def _version(state: PackageState | None) -> str:
    if state is None:
        return "-"
    return state.version or "(local source)"


def _size_change(change: PackageChange) -> str:
    before = change.before.bytes if change.before else 0
    after = change.after.bytes if change.after else 0
    return "" if before is None or after is None else shown_delta(after - before)


def _totals(comparison: Comparison) -> Table:
    table = _table("total", comparison.a, comparison.b, "bytes", right=("bytes",))
    for total in comparison.totals:
        known = total.bytes_a is not None and total.bytes_b is not None
        delta = (total.bytes_b or 0) - (total.bytes_a or 0)
        table.add_row(
            total.world,
            _amount(total.packages_a, total.bytes_a),
            _amount(total.packages_b, total.bytes_b),
            shown_delta(delta) if known and comparison.comparable else "",
        )
    return table


def _amount(packages: int, size: int | None) -> str:
    return f"{packages} packages" if size is None else f"{packages} packages, {shown_bytes(size)}"


def _layers(images: ImageComparison) -> Table:
    table = _table("layers", "bytes", "what", right=("bytes",))
    table.add_row(f"{len(images.shared)} shared", _sum(images.shared), "")
    for side, layers in (("A", images.only_a), ("B", images.only_b)):
        table.add_row(f"{len(layers)} only in {side}", _sum(layers), "")
        for layer in layers:
            size = "" if layer.bytes is None else shown_bytes(layer.bytes)
            table.add_row(f"  {layer.diff_id[:ID_CHARACTERS]}", size, layer.title[:TITLE_CHARACTERS])
    return table


def _sum(layers: Iterable[LayerFacts]) -> str:
    sizes = [layer.bytes for layer in layers]
    known = [size for size in sizes if size is not None]
    return shown_bytes(sum(known)) if len(known) == len(sizes) else "not known"


def _settings(images: ImageComparison) -> list[Table]:
    if not images.settings:
        return []
    table = _table("setting", "name", "A", "B")
    for change in images.settings:
        table.add_row(change.kind, change.name, change.a or "-", change.b or "-")
    return [table]
