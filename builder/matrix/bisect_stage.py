"""Two locks, or two commits of a package -> the smallest difference that breaks it: the bisection on real parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.document import key_of, pretty_json, write_atomic
from builder.errors import UsageError
from builder.explain.metadata import requirements_by_name
from builder.lock.git import commits_between, fetch_commit
from builder.lock.target import target_of
from builder.lock.writing import write_lock
from builder.matrix.bisecting import Bisect, Bisection
from builder.matrix.mixing import SOURCES, Move, mixed, moves_between
from builder.matrix.trial import Bench, prove_locked, recall, recalled, remembered, try_variant, variant_tag
from builder.matrix.workplace import VARIANTS, clear, shown_run, workplace
from builder.recipe.workspace import workspace_of
from builder.verify.grounds import grounds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from pathlib import Path

    from builder.lock.model import Lock
    from builder.matrix.outcome import Outcome
    from builder.matrix.searching import Budget
    from builder.matrix.sides import Locked
    from builder.recipe.source import RecipeFile
    from builder.tools import Tools


def bisect_locks(good: Locked, bad: Locked, tools: Tools, budget: Budget) -> tuple[Bisection, Path]:
    """Find the smallest set of packages that turns a good lock into a bad one; return the file of all runs too.

    Every mixture is proven as the bad side's recipe asks. What is known from an earlier call is not run again.
    """
    target = target_of(bad.source.recipe, bad.lock.file.base)
    moves = moves_between(good.lock, bad.lock, _requirements(bad.source, tools), target)
    if not moves:
        raise UsageError(f"{good.name} and {bad.name}: the locks have the same packages", remedy="see `envbuild diff`")
    question = {"good": good.lock.digest, "bad": bad.lock.digest, "recipe": bad.source.recipe.to_plain()}
    with workplace(bad.source.recipe.name, question, tools) as folder:
        tools.console.say(f"  {len(moves)} changes between {good.name} and {bad.name}")
        runs = _Mixtures(good=good, bad=bad, folder=folder, tools=tools)
        return _carry_out(runs, budget, lambda bisect: bisect.packages(moves, lambda move: move.lines))


def bisect_commits(
    source: RecipeFile, package: str, tools: Tools, budget: Budget, *, good: str, bad: str
) -> tuple[Bisection, Path]:
    """Find the first bad commit of a package that is built from git; commits that do not compile are not judged."""
    wish = source.recipe.stack.get(package)
    if wish is None or wish.git is None:
        names = [name for name, each in source.recipe.stack.items() if each.git is not None]
        raise UsageError(
            f"{source.path}: {package} is not built from git",
            remedy=f"built from git: {', '.join(names) or 'no package of this recipe'}",
        )
    place = source.place_of("stack", package, "git")
    checkout = fetch_commit(wish.git, bad, tools.store, tools.settings, place=place, history=True)
    line = (good, *commits_between(checkout, good))
    question = {"recipe": str(source.path.resolve()), "package": package, "line": line}
    with workplace(source.recipe.name, question, tools) as folder:
        tools.console.say(f"  {len(line) - 1} commits of {package} after {good[:12]}")
        bench = Bench(source=source, root=folder / VARIANTS)
        runs = _Commits(bench=bench, path=f"stack.{package}.commit", folder=folder, tools=tools)
        return _carry_out(runs, budget, lambda bisect: bisect.commits(line))


def differing_commit(good: Locked, bad: Locked) -> tuple[str, str, str] | None:
    """Return the package and its two commits if that is all that the stacks of two recipes differ in."""
    old, new = good.source.recipe.stack, bad.source.recipe.stack
    if old.keys() != new.keys():
        return None
    other = [name for name in old if old[name] != new[name]]
    if len(other) != 1 or old[other[0]].model_copy(update={"commit": new[other[0]].commit}) != new[other[0]]:
        return None
    return other[0], str(old[other[0]].commit), str(new[other[0]].commit)


def _carry_out(runs: _Mixtures | _Commits, budget: Budget, go: Callable[[Bisect], Bisection]) -> tuple[Bisection, Path]:
    """Bisect, with a file that holds all runs so far; clear up what only an unfinished bisection needs."""
    file = runs.folder / "bisection.json"

    def keep(bisection: Bisection) -> None:
        write_atomic(file, pretty_json(bisection.to_plain()))

    found = go(Bisect(runs=runs, budget=budget, on_step=keep))
    keep(found)
    if found.end == "found":
        clear(runs.folder, runs.name, runs.tools)
    return found, file


def _requirements(source: RecipeFile, tools: Tools) -> Callable[[Lock], Mapping[str, tuple[str, ...]]]:
    """Return what says of each wheel of a lock what it requires."""
    return lambda lock: requirements_by_name(lock.wheels, source.recipe.indexes, tools.store, tools.settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Commits:
    """Commits of one package, run on this machine."""

    bench: Bench
    path: str
    folder: Path
    tools: Tools

    @property
    def name(self) -> str:
        return self.bench.source.recipe.name

    def recall(self, commit: Hashable) -> Outcome | None:
        return recall(self.bench, {self.path: str(commit)}, self.tools)

    def run(self, what: str, commit: Hashable) -> Outcome:
        edits = {self.path: str(commit)}
        return shown_run(f"commit {what}", self.tools, lambda tools: try_variant(self.bench, edits, tools))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mixtures:
    """Mixtures of two locks, run on this machine."""

    good: Locked
    bad: Locked
    folder: Path
    tools: Tools

    @property
    def name(self) -> str:
        return self.bad.source.recipe.name

    def recall(self, moves: Hashable) -> Outcome | None:
        source, lock, _ = self._mix(moves)
        return recalled(self._key(source, lock), self.tools.store)

    def run(self, what: str, moves: Hashable) -> Outcome:
        source, lock, files = self._mix(moves)
        write_lock(workspace_of(source).lock, files)

        def prove(tools: Tools) -> Outcome:
            tag = variant_tag(source.root)
            return remembered(self._key(source, lock), tools.store, lambda: prove_locked(source, lock, tools, tag=tag))

        return shown_run(what, self.tools, prove)

    def _mix(self, moves: Hashable) -> tuple[RecipeFile, Lock, dict[str, bytes]]:
        """Return a mixture: its recipe has the stack of the side whose sources it has, and the bad side's proof."""
        chosen = [move for move in moves if isinstance(move, Move)] if isinstance(moves, frozenset) else []
        lock, files = mixed(self.good.lock, self.bad.lock, chosen)
        moved = any(SOURCES in move.names for move in chosen)
        recipe, whose = self.bad.source.recipe, (self.bad if moved else self.good).source
        source = replace(
            whose,  # its own sources lie beside it
            recipe=recipe.model_copy(update={"stack": whose.recipe.stack}),
            root=self.folder / VARIANTS / lock.digest[:16],
        )
        return source, replace(lock, name=recipe.name), files

    def _key(self, source: RecipeFile, lock: Lock) -> str:
        return key_of({"mixture": grounds_of(source, lock).key})
