"""Matrix -> job matrices of GitHub Actions: who compiles goes first, what is known is left out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from builder.document import Document
from builder.matrix.waves import leaders_of, wheels_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.matrix.cells import Cell
    from builder.matrix.grid import Matrix

DEFAULT_RUNNER = ("ubuntu-24.04",)


class JobEntry(Document):
    """One job: the cell that it runs, the file of its recipe, and the labels that its runner must have."""

    cell: str
    recipe: str
    path: str
    target: str
    runner: tuple[str, ...]


class JobMatrices(Document):
    """The jobs that compile for others, those that come after them, and the cells that need no job.

    `publish` are the cells that are a recipe as it is, and should be good: the images that may be published.
    """

    first: tuple[JobEntry, ...]
    rest: tuple[JobEntry, ...]
    publish: tuple[JobEntry, ...]
    skipped: tuple[str, ...]

    def output_lines(self) -> str:
        """Return the lines for `$GITHUB_OUTPUT`: each wave as JSON for `fromJSON`, and whether it has jobs."""
        lines = []
        for name, jobs in (("first", self.first), ("rest", self.rest), ("publish", self.publish)):
            plain = {"include": [job.to_plain() for job in jobs]}
            lines += [f"{name}={json.dumps(plain, sort_keys=True)}", f"any-{name}={'true' if jobs else 'false'}"]
        return "\n".join(lines) + "\n"


def job_matrices(matrix: Matrix, cells: Sequence[Cell], known: Sequence[str]) -> JobMatrices:
    """Return the jobs of the cells that must be run; `known` are those with a verdict for the same content, by name."""
    to_run = [cell for cell in cells if cell.to_run and cell.name not in known]
    leaders = leaders_of(to_run)
    first = [cell for cell in to_run if _leads(cell) and leaders[cell.name] is None]
    names = {cell.name for cell in to_run}
    return JobMatrices(
        first=tuple(_entry(cell, matrix) for cell in first),
        rest=tuple(_entry(cell, matrix) for cell in to_run if cell not in first),
        publish=tuple(_entry(cell, matrix) for cell in cells if cell.to_run and not cell.edits and not cell.expected),
        skipped=tuple(cell.name for cell in cells if cell.name not in names),
    )


def _leads(cell: Cell) -> bool:
    return wheels_key(cell) is not None


def _entry(cell: Cell, matrix: Matrix) -> JobEntry:
    runners = matrix.runners
    labels = runners.get(cell.source.recipe.name) or runners.get(cell.gpu) or runners.get("default") or DEFAULT_RUNNER
    return JobEntry(
        cell=cell.name,
        recipe=cell.source.recipe.name,
        path=cell.source.path.as_posix(),
        target=cell.gpu,
        runner=labels,
    )
