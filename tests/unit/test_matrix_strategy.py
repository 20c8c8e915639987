"""The search without any engine: worlds of wrong values, and how soon the good variant is found."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field
from statistics import mean
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import UsageError
from builder.matrix.ledger import Ledger, edits_text, row_line
from builder.matrix.outcome import Outcome, Suspicion
from builder.matrix.searching import Budget, Search
from builder.matrix.strategy import Factor, Tried, propose
from builder.verify.reported import PHASE_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.matrix.strategy import Choice

Edits = dict[str, str | int | float | bool | tuple[str, ...]]
BUILDS = ("stack.torch.version",)


@dataclass(kw_only=True)
class World:
    """Factors with one right value each; a wrong one fails in its own phase, `order` says which comes first.

    The diagnoses of `named` factors propose the right value; `same` failures look all alike. No variant may run twice.
    """

    right: Mapping[str, Choice]
    order: Sequence[str]
    named: frozenset[str] = frozenset()
    confidence: float = 0.7
    same: bool = False
    runs: list[dict[str, Choice]] = field(default_factory=list)

    def recall(self, edits: Mapping[str, Choice]) -> Outcome | None:
        return None

    def run(self, row: int, hypothesis: str, edits: Mapping[str, Choice]) -> Outcome:
        assert dict(edits) not in self.runs, "a variant was run twice"
        new_image = not any(all(edits.get(path) == other.get(path) for path in BUILDS) for other in self.runs)
        self.runs.append(dict(edits))
        return self.judged(edits).model_copy(update={"built": new_image, "minutes": 1.0})

    def judged(self, edits: Mapping[str, Choice]) -> Outcome:
        for place, path in enumerate(self.order, start=1):
            if edits.get(path, "v0") != self.right[path]:
                phase = "decode" if self.same else PHASE_NAMES[min(place, len(PHASE_NAMES) - 1)]
                failure = "all alike" if self.same else f"{path} is {edits.get(path)}"
                right = self.right[path]
                named: Edits = {path: right} if path in self.named and right is not None else {}
                suspicions = [Suspicion(kind="known", confidence=self.confidence, edits=named)] if named else []
                return Outcome(
                    result="bad",
                    cause=failure,
                    failure=failure,
                    level="program",
                    phase=phase,
                    suspicions=tuple(suspicions),
                )
        return Outcome(result="good", cause="all passed")


def factors(*counts: int) -> tuple[Factor, ...]:
    paths = [f"serve.args.a{index}" for index in range(len(counts) - 1)] + list(BUILDS)
    return tuple(
        Factor(path=path, values=tuple(f"v{value}" for value in range(count)))
        for path, count in zip(paths, counts, strict=True)
    )


def search(axes: Sequence[Factor], world: World, budget: Budget = Budget(), *, smallest: bool = False) -> Ledger:  # noqa: B008
    own = {factor.path: factor.values[0] for factor in axes}
    seen: list[Ledger] = []
    found = Search(
        recipe="r", axes=axes, own=lambda path: own.get(path, "v0"), trials=world, budget=budget, on_row=seen.append
    ).find(smallest=smallest)
    assert seen[-1] == found
    return found


def world_of(axes: Sequence[Factor], chance: random.Random, *, named: int = 0, same: bool = False) -> World:
    """A world where some factors are wrong, in a random order."""
    wrong = set(chance.sample(range(len(axes)), chance.randint(1, len(axes))))
    right = {
        factor.path: factor.values[chance.randrange(1, len(factor.values)) if index in wrong else 0]
        for index, factor in enumerate(axes)
    }
    order = [factor.path for factor in axes]
    chance.shuffle(order)
    return World(right=right, order=order, named=frozenset(chance.sample(order, named)), same=same)


@pytest.mark.parametrize("counts", [(2, 2, 2, 2), (2, 2, 2, 2, 2, 2), (3, 3, 3, 2), (4, 3, 2)])
@pytest.mark.parametrize("named", [0, 2])
def test_over_all_worlds_fewer_than_half_of_the_grid_is_run_in_the_mean(counts: tuple[int, ...], named: int) -> None:
    axes = factors(*counts)
    worlds = [world_of(axes, random.Random(seed), named=named) for seed in range(60)]
    for world in worlds:
        assert search(axes, world).end == "good"
    assert mean(len(world.runs) for world in worlds) < math.prod(counts) / 2


def test_three_wrong_settings_and_one_wrong_pin_take_fewer_than_half_of_the_runs_whatever_hides_what() -> None:
    axes = factors(2, 2, 2, 2)
    right: dict[str, Choice] = {factor.path: "v1" for factor in axes}
    for order in itertools.permutations(right):
        world = World(right=right, order=order)
        ledger = search(axes, world)
        assert (ledger.end, ledger.edits) == ("good", right)
        assert len(world.runs) < 8
        assert ledger.builds == 2


def test_the_sentence_says_what_is_good_once() -> None:
    (axis,) = factors(2)
    for value, sentence in (("v0", "the recipe as it is"), ("v1", f"with {edits_text({axis.path: 'v1'})}")):
        ledger = search([axis], World(right={axis.path: value}, order=[axis.path]))
        assert (ledger.end, ledger.sentence) == ("good", sentence)


@given(st.lists(st.integers(2, 3), min_size=1, max_size=4), st.integers(0, 10_000), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_good_variant_is_always_found_and_no_variant_runs_twice(counts: list[int], seed: int, same: bool) -> None:
    axes = factors(*counts)
    world = world_of(axes, random.Random(seed), same=same)
    ledger = search(axes, world)
    assert ledger.end == "good"
    assert world.judged(ledger.edits).result == "good"
    assert len(world.runs) <= math.prod(counts)


@given(st.lists(st.integers(2, 3), min_size=1, max_size=4), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_settings_are_tried_before_an_equally_suspected_pin(counts: list[int], seed: int) -> None:
    axes = factors(*counts)
    history = [Tried(edits={}, outcome=world_of(axes, random.Random(seed)).judged({}))]
    proposal = propose(axes, history)
    assert proposal is not None
    assert (BUILDS[0] in proposal.edits) == (len(counts) == 1)


def test_a_pin_that_the_diagnosis_names_goes_before_settings_that_nothing_names() -> None:
    axes = factors(2, 2, 2)
    world = World(
        right={factor.path: "v1" for factor in axes},
        order=[*BUILDS, *(factor.path for factor in axes[:2])],
        named=frozenset(BUILDS),
        confidence=0.95,
    )
    ledger = search(axes, world)
    assert ledger.rows[1].edits == {BUILDS[0]: "v1"}
    assert row_line(ledger.rows[1]) == "  2. torch=v1 cures known (95%): bad -> confirmed, 1.0 min"


def test_without_axes_the_space_grows_with_what_the_diagnoses_propose() -> None:
    paths = ["serve.args.x", "serve.env.Y", *BUILDS]
    world = World(right=dict.fromkeys(paths, "v1"), order=paths, named=frozenset(paths))
    ledger = search((), world)
    assert (ledger.end, ledger.edits, len(ledger.rows)) == ("good", dict.fromkeys(paths, "v1"), 4)
    assert [row.standing for row in ledger.rows] == ["start", "confirmed", "confirmed", "confirmed"]


def test_without_axes_and_without_a_diagnosis_there_is_nothing_to_try() -> None:
    ledger = search((), World(right={"serve.args.x": "v1"}, order=["serve.args.x"]))
    assert (ledger.end, len(ledger.rows)) == ("none good", 1)
    assert "give --axis" in ledger.sentence


def test_a_failure_that_stays_whatever_the_diagnoses_propose_ends_the_search_before_the_whole_grid() -> None:
    edits: Edits = {f"serve.args.a{number}": "v1" for number in range(4)}

    class Stubborn(World):
        def judged(self, edits_now: Mapping[str, Choice]) -> Outcome:
            suspicion = Suspicion(kind="known", confidence=0.5, edits=edits)
            return Outcome(result="bad", cause="x", failure="x", level="program", suspicions=(suspicion,))

    world = Stubborn(right={}, order=[])
    ledger = search((), world)
    assert ledger.end == "none good"
    assert len(world.runs) < 16
    assert "were not run: what was seen rules them out" in ledger.sentence


def test_given_axes_are_gone_through_before_none_is_called_good() -> None:
    world = World(right={"elsewhere": "v9"}, order=["elsewhere"])
    ledger = search(factors(2, 2, 2), world)
    assert (ledger.end, len(world.runs), ledger.sentence) == ("none good", 8, "none of 8 variants is good")


def test_two_settings_that_fail_alike_are_found_though_neither_alone_helps() -> None:
    axes = factors(2, 2, 2)
    right: dict[str, Choice] = {axes[0].path: "v1", axes[1].path: "v1", BUILDS[0]: "v0"}
    assert search(axes, World(right=right, order=list(right), same=True)).end == "good"


def test_edits_that_are_not_needed_are_left_out_on_request() -> None:
    paths = ["serve.args.a0", "serve.args.a1"]
    world = World(right={paths[0]: "v1"}, order=[paths[0]])
    both = Suspicion(kind="known", confidence=0.9, edits=dict.fromkeys(paths, "v1"))

    class Both(World):
        def judged(self, edits: Mapping[str, Choice]) -> Outcome:
            outcome = super().judged(edits)
            return outcome if outcome.result == "good" else outcome.model_copy(update={"suspicions": (both,)})

    world = Both(right={paths[0]: "v1"}, order=[paths[0]])
    ledger = search((), world, smallest=True)
    assert ledger.edits == {paths[0]: "v1"}


def test_the_budget_of_builds_leaves_runs_that_build_nothing() -> None:
    axes = factors(2, 2, 2)
    world = World(right={factor.path: "v1" for factor in axes}, order=[factor.path for factor in axes])
    ledger = search(axes, world, Budget(builds=1))
    assert (ledger.end, ledger.sentence, ledger.builds) == ("budget ended", "the budget of 1 builds ended", 1)
    assert len(world.runs) > 1


def test_the_budget_of_minutes_begins_no_run_after_its_end() -> None:
    axes = factors(2, 2, 2)
    world = World(right={factor.path: "v1" for factor in axes}, order=[factor.path for factor in axes])
    ledger = search(axes, world, Budget(minutes=2))
    assert (ledger.end, len(world.runs)) == ("budget ended", 2)


def test_what_cannot_be_judged_ends_the_search_as_unverified() -> None:
    class Skipping(World):
        def judged(self, edits: Mapping[str, Choice]) -> Outcome:
            return Outcome(result="unverified", cause="gpu-decode: no GPU here")

    ledger = search(factors(2, 2), Skipping(right={}, order=[]))
    assert (ledger.end, ledger.sentence, len(ledger.rows)) == ("unverified", "gpu-decode: no GPU here", 1)


def test_axes_that_make_too_many_variants_are_refused() -> None:
    axes = factors(*[9] * 6)
    with pytest.raises(UsageError, match="more than 20000 variants"):
        search(axes, world_of(axes, random.Random(1)))
