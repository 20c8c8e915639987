"""What a collection would free, as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from builder.collect.garbage import Garbage


def garbage_table(garbage: Garbage) -> RenderableType:
    """Return one line for each kind of file, and one for each image; the sum of the store's bytes last."""
    if not garbage.count:
        return Text("nothing to remove: every file is needed by a lock")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading, side in (("kind", "left"), ("count", "right"), ("MiB", "right")):
        table.add_column(heading, justify="right" if side == "right" else "left")
    for kind, (count, size) in garbage.kinds.items():
        table.add_row(kind, str(count), f"{size / (1 << 20):.1f}")
    for image in garbage.images:
        table.add_row(f"image {', '.join(image.names)}", "1", f"({image.size / (1 << 20):.1f} with shared layers)")
    table.add_row(Text("in the store", style="bold"), str(len(garbage.pieces)), f"{garbage.size / (1 << 20):.1f}")
    return Group(table)
