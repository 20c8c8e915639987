"""Recipe -> the nearest good variant, as one stretch of the road: the search on real parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.diagnose.cures import finding_of
from builder.document import pretty_json, write_atomic
from builder.matrix.searching import Budget, Search
from builder.matrix.trial import Bench, recall, try_variant
from builder.matrix.variant import own_value
from builder.matrix.workplace import VARIANTS, clear, shown_run, workplace
from builder.verify.reported import Edit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from builder.matrix.ledger import Ledger
    from builder.matrix.outcome import Outcome
    from builder.matrix.strategy import Choice, Factor
    from builder.recipe.source import RecipeFile
    from builder.store import Store
    from builder.tools import Tools

NO_LIMIT = Budget()


def search_recipe(
    source: RecipeFile,
    tools: Tools,
    *,
    axes: Sequence[Factor] = (),
    budget: Budget = NO_LIMIT,
    smallest: bool = False,
) -> tuple[Ledger, Path]:
    """Search a good variant of a recipe; return the ledger and the file that it is written to after every run.

    Killed and started again it goes on: a verdict that is known is never sought again. The recipe's own lock, verdict
    and image stay as they are.
    """
    question = {
        "recipe": str(source.path.resolve()),
        "axes": [[factor.path, *map(str, factor.values)] for factor in axes],
    }
    with workplace(source.recipe.name, question, tools) as folder:
        bench = Bench(source=source, root=folder / VARIANTS)
        file = folder / "ledger.json"
        search = Search(
            recipe=source.recipe.name,
            axes=axes,
            own=lambda path: own_value(source.recipe, path),
            trials=_Trials(bench=bench, tools=tools),
            budget=budget,
            on_row=lambda ledger: write_atomic(file, pretty_json(ledger.to_plain())),
        )
        ledger = search.find(smallest=smallest)
        if ledger.end != "budget ended":
            clear(folder, source.recipe.name, tools)
    return ledger, file


def finding_from(ledger: Ledger, source: RecipeFile, store: Store) -> str | None:
    """Return the finding that a search offers: the last failure before the good run, and the edits that cured it."""
    failed = [row for row in ledger.rows if row.outcome.result != "good"]
    if ledger.end != "good" or not failed:
        return None
    last = max(failed, key=lambda row: row.outcome.progress)
    cure = {path: value for path, value in ledger.edits.items() if last.edits.get(path) != value}
    edits = [Edit(path=path, value=value) for path, value in cure.items() if value is not None]
    return finding_of(last.outcome.log, source.recipe, edits, store)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trials:
    """Variants of one recipe, run on this machine."""

    bench: Bench
    tools: Tools

    def recall(self, edits: Mapping[str, Choice]) -> Outcome | None:
        return recall(self.bench, edits, self.tools)

    def run(self, row: int, hypothesis: str, edits: Mapping[str, Choice]) -> Outcome:
        return shown_run(f"run {row}: {hypothesis}", self.tools, lambda tools: try_variant(self.bench, edits, tools))
