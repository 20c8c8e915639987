"""A report of sizes as people read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table

from builder.sizes import shown_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from builder.build.sizes import SizeReport

TITLE_CHARACTERS = 100


def sizes_table(report: SizeReport) -> RenderableType:
    """Return the packages and the layers of an image, the biggest first, each with its total."""
    return Group(_packages(report), "", _layers(report))


def _packages(report: SizeReport) -> Table:
    table = _table("installed", "files", "package", right=2)
    for package in report.packages:
        table.add_row(shown_bytes(package.bytes), str(package.files), f"{package.name} {package.version}")
    files = sum(package.files for package in report.packages)
    table.add_row(shown_bytes(report.installed), str(files), f"{len(report.packages)} packages", style="bold")
    return table


def _layers(report: SizeReport) -> Table:
    table = _table("travels", "unpacked", "layer", right=2)
    for layer in report.layers:
        table.add_row(_size(layer.compressed), _size(layer.unpacked), layer.title[:TITLE_CHARACTERS])
    table.add_row(_size(report.compressed), _size(report.unpacked), f"{len(report.layers)} layers", style="bold")
    return table


def _table(*headings: str, right: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, heading in enumerate(headings):
        table.add_column(heading, overflow="fold", justify="right" if number < right else "left")
    return table


def _size(size: int | None) -> str:
    return "not made" if size is None else shown_bytes(size)
