"""A report of a matrix as Markdown, for the summary of a job or the text of a pull request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.matrix.cellreport import changes_since
from builder.matrix.report.text import closing_line, why

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.matrix.cellreport import CellReport, MatrixReport

SIGNS = {
    "good": "✅ good",
    "bad": "❌ bad",
    "unbuildable": "❌ does not build",
    "unresolvable": "❌ does not resolve",
    "unverified": "⚠️ unverified",
    "refused": "⛔ refused",
    "pending": "… not run",
    "excluded": "◽ left out",
}
MAX_CHANGES = 40
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~@])")


def markdown_text(report: MatrixReport) -> str:
    """Return the verdict in a sentence, the table of all cells, and what changed in those that were good before."""
    return "\n".join([*_lines(report), ""])


def _lines(report: MatrixReport) -> Iterator[str]:
    result, sentence = closing_line(report)
    yield f"### {_escaped(report.name)}: {result}\n"
    yield f"{_escaped(sentence)}.\n"
    yield f"| cell | {' | '.join(map(_escaped, report.axes))} | verdict | why |"
    yield f"|---{'|---' * len(report.axes)}|---|---|"
    for cell in report.cells:
        values = " | ".join(_escaped(str(cell.values.get(axis, ""))) for axis in report.axes)
        mark = "" if cell.ends_as_expected else " **(not as expected)**"
        yield f"| {_escaped(cell.name)} | {values} | {SIGNS[cell.state]}{mark} | {_escaped(why(cell))} |"
    for cell in report.cells:
        yield from _changes(cell)


def _changes(cell: CellReport) -> Iterator[str]:
    if cell.last_good is None or not cell.packages:
        return
    changes = changes_since(cell.last_good.packages, cell.packages)
    if not changes:
        return
    yield f"\n<details><summary>{_escaped(cell.name)}: {len(changes)} changes since it was last good</summary>\n"
    yield from (f"- {_escaped(line)}" for line in changes[:MAX_CHANGES])
    if len(changes) > MAX_CHANGES:
        yield f"- and {len(changes) - MAX_CHANGES} more"
    yield "\n</details>"


def _escaped(text: str) -> str:
    """Return text that Markdown shows as it is, in one line; nothing in it is a link, a mention or a column."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
