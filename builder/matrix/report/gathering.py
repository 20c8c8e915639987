"""Files of reports -> one report: the parts of a matrix that several machines ran, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import InvalidDocumentError, UsageError
from builder.matrix.cellreport import CellReport, MatrixReport, with_last_good

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_GIVE_A_REPORT = "give what `envbuild matrix run --output FILE` wrote"


def gather_reports(paths: Sequence[Path], earlier: Path | None = None) -> MatrixReport:
    """Read reports, from folders all `*.json` below them, and put them together; raise UsageError if they are of two.

    The order of the cells is that of the report with the most; a cell that was run counts before one that was not.
    """
    files = [file for path in paths for file in (sorted(path.rglob("*.json")) if path.is_dir() else [path])]
    if not files:
        raise UsageError(f"{paths[0]}: no report in it", remedy=_GIVE_A_REPORT)
    parts = [_read(file) for file in files]
    names = sorted({part.name for part in parts})
    if len(names) > 1:
        raise UsageError(f"these are reports of {len(names)} matrices: {', '.join(names)}", remedy="give those of one")
    whole = _together(parts)
    before = _read(earlier) if earlier else None
    return with_last_good(whole, before) if before else whole


def _read(file: Path) -> MatrixReport:
    try:
        return MatrixReport.from_json(file.read_bytes(), source=str(file))
    except InvalidDocumentError as error:
        raise InvalidDocumentError(error.message, remedy=_GIVE_A_REPORT) from None


def _together(parts: list[MatrixReport]) -> MatrixReport:
    widest = max(parts, key=lambda part: len(part.cells))
    cells: dict[str, CellReport] = {cell.name: cell for cell in widest.cells}
    for part in sorted(parts, key=lambda part: part.finished):
        for cell in part.cells:
            if cell.name not in cells or cell.state != "pending":
                cells[cell.name] = cell
    return widest.model_copy(
        update={
            "cells": tuple(cells.values()),
            "finished": max(part.finished for part in parts),
            "seconds": max(part.seconds for part in parts),
            "places": tuple(dict.fromkeys(place for part in parts for place in part.places)),
        }
    )
