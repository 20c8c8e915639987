"""Axes and edits of a recipe, mixtures of two locks, and bisection with runs that are functions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.errors import InvalidDocumentError, UsageError
from builder.lock.model import DebianLock, DebianRelease, Lock, LockedWheel, LockFile
from builder.lock.pylock import read_pylock
from builder.lock.target import Target
from builder.matrix.bisecting import Bisect, Bisection
from builder.matrix.ledger import standing_of
from builder.matrix.mixing import mixed, moves_between
from builder.matrix.outcome import Outcome, Suspicion
from builder.matrix.searching import Budget
from builder.matrix.variant import axes_of, edited, own_value
from builder.recipe.source import RecipeFile, parse_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from builder.matrix.mixing import Move

RECIPE = """\
version: 1
name: r
target: {gpu: rtx-pro-6000}
base: {debian: trixie}
python: "3.13"
stack:
  torch: "2.9.1"
  sgl_kernel: {git: "https://example.org/k.git", commit: "%s", build: {}}
overrides:
  flash_attn_4: {absent: true, reason: nothing calls it}
serve:
  engine: sglang
  args: {kv-cache-dtype: fp8_e4m3, mem-fraction-static: 0.9, model.impl: auto}
  env: {NCCL_P2P_LEVEL: SYS}
""" % ("a" * 40)
TARGET = Target(python="3.13", glibc=41)


def recipe() -> RecipeFile:
    parsed, complaints = parse_recipe(RECIPE)
    assert parsed is not None, complaints
    return RecipeFile(path=Path("recipes/r.yaml"), recipe=parsed)


def test_axes_find_options_variables_packages_commits_and_paths_and_begin_with_the_recipes_own_value() -> None:
    found = axes_of(
        recipe(),
        [
            "kv-cache-dtype=bf16,fp8_e4m3",
            "mem-fraction-static=0.85",
            "disable-cuda-graph=true",
            "NCCL_P2P_LEVEL=PHB",
            "torch=2.10.0,2.9.1",
            f"sgl-kernel={'b' * 40}",
            "base.debian=bookworm",
            "overrides.Flash-Attn.4=absent,4.0.0b15",
            "overrides.zope.interface=absent,7.2",
        ],
    )
    assert {factor.path: factor.values for factor in found} == {
        "serve.args.kv-cache-dtype": ("fp8_e4m3", "bf16"),
        "serve.args.mem-fraction-static": (0.9, 0.85),
        "serve.args.disable-cuda-graph": (None, True),
        "serve.env.NCCL_P2P_LEVEL": ("SYS", "PHB"),
        "stack.torch.version": ("2.9.1", "2.10.0"),
        "stack.sgl_kernel.commit": ("a" * 40, "b" * 40),
        "base.debian": ("trixie", "bookworm"),
        "overrides.flash_attn_4": ("absent", "4.0.0b15"),
        "overrides.zope.interface": (None, "absent", "7.2"),
    }
    assert [factor.needs_build for factor in found] == [False] * 4 + [True] * 5


@pytest.mark.parametrize("text", ["kv-cache-dtype", "=bf16", "a=", "a=1,,2"])
def test_an_axis_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not of the form NAME=VALUE,VALUE"):
        axes_of(recipe(), [text])


def test_an_edited_recipe_has_the_new_values_and_all_others() -> None:
    edits = {"serve.args.model.impl": "x", "stack.torch.version": "2.10.0", "stack.flashinfer-python.version": "0.6.8"}
    changed = edited(recipe(), edits)
    assert {path: own_value(changed.recipe, path) for path in edits} == edits
    assert own_value(changed.recipe, "serve.args.kv-cache-dtype") == "fp8_e4m3"
    assert edited(recipe(), {}).recipe == recipe().recipe


def test_an_edited_override_has_a_version_or_is_absent() -> None:
    edits = {"overrides.flash_attn_4": "4.0.0b15", "overrides.zope.interface": "absent"}
    changed = edited(recipe(), edits).recipe
    assert {path: own_value(changed, path) for path in edits} == edits
    assert {name: (each.version, each.absent) for name, each in changed.overrides.items()} == {
        "flash_attn_4": ("4.0.0b15", None),
        "zope.interface": (None, True),
    }


@pytest.mark.parametrize("field", ["version", "absent", "reason"])
def test_a_field_of_an_override_is_no_name_of_a_package(field: str) -> None:
    message = rf"r\.yaml: overrides\.lib\.{field}: overrides\.lib has one value, a version or `absent`$"
    with pytest.raises(InvalidDocumentError, match=message):
        edited(recipe(), {f"overrides.lib.{field}": "1.0"})


def test_edits_that_make_no_recipe_are_refused_with_their_place() -> None:
    with pytest.raises(InvalidDocumentError, match=r"stack\.torch\.version"):
        edited(recipe(), {"stack.torch.version": "newest"})


def lock(wheels: Mapping[str, str], *, debian: str = "1") -> Lock:
    release = DebianRelease(
        archive="debian", suite="trixie", date=f"2026-01-0{debian}T00:00:00Z", packages_sha256="0" * 64
    )
    deb = {"name": "libc6", "version": debian, "architecture": "amd64", "archive": "debian", "filename": "f"}
    base = [{**deb, "sha256": debian * 64, "size": 1}]
    file = LockFile(
        question={"python": {"python": "3.13"}},
        debian=DebianLock.model_validate(
            {"suite": "trixie", "releases": (release,), "base": tuple(base)}, strict=False
        ),
        python={},
        tools={},
    )
    locked = tuple(
        LockedWheel(
            name=name,
            version=version,
            filename=f"{name}-{version}-py3-none-any.whl",
            sha256=f"{hash(name + version) & 0xFFFF:064x}",
            size=1,
        )
        for name, version in sorted(wheels.items())
    )
    return Lock(name="r", file=file, wheels=locked, toolchain_wheels=(), digest=str(sorted(wheels.items())))


def moves(good: Lock, bad: Lock, requires: Mapping[str, Mapping[str, tuple[str, ...]]]) -> tuple[Move, ...]:
    return moves_between(good, bad, lambda side: requires["good" if side is good else "bad"], TARGET)


def test_wheels_move_alone_after_those_that_they_need_and_together_where_they_need_each_other() -> None:
    good = lock({"app": "1", "lib": "1", "left": "1", "right": "1", "gone": "1", "same": "1"})
    bad = lock({"app": "2", "lib": "2", "left": "2", "right": "2", "new": "1", "same": "1"}, debian="2")
    requires: dict[str, dict[str, tuple[str, ...]]] = {
        "good": {"left": ("right<2",), "app": ("gone",)},
        "bad": {
            "app": ("lib>=2", "new", 'nothing>=9; sys_platform == "win32"'),
            "left": ("right>=2",),
            "right": ("left>=2",),
        },
    }
    names = [move.names for move in moves(good, bad, requires)]
    assert frozenset({"wheel left", "wheel right"}) in names
    assert frozenset({"debian"}) in names
    order = [min(name) for name in names]
    assert order.index("wheel lib") < order.index("wheel app") < order.index("wheel gone")
    assert order.index("wheel new") < order.index("wheel app")
    assert len(names) == 6


def test_a_mixture_has_the_moved_packages_of_the_bad_lock_and_all_others_of_the_good_one() -> None:
    good, bad = lock({"a": "1", "b": "1", "c": "1"}), lock({"a": "2", "b": "2", "d": "1"}, debian="2")
    every = {next(iter(move.names)): move for move in moves(good, bad, {"good": {}, "bad": {}})}
    found, files = mixed(good, bad, [every["wheel a"], every["wheel d"]])
    assert [(wheel.name, wheel.version) for wheel in found.wheels] == [("a", "2"), ("b", "1"), ("c", "1"), ("d", "1")]
    assert read_pylock(files["pylock.toml"], source="x") == found.wheels
    assert found.file.debian == good.file.debian
    whole, _ = mixed(good, bad, every.values())
    assert (whole.wheels, whole.file.debian) == (bad.wheels, bad.file.debian)
    assert len({found.digest, whole.digest, mixed(good, bad, [])[0].digest}) == 3


class Function:
    """Runs that are a function of what is run, each asked for once."""

    def __init__(self, answer: Callable[[Hashable], Outcome]) -> None:
        self.answer = answer
        self.made: dict[Hashable, Outcome] = {}

    def recall(self, item: Hashable) -> Outcome | None:
        return self.made.get(item)

    def run(self, what: str, item: Hashable) -> Outcome:
        assert item not in self.made
        self.made[item] = self.answer(item)
        return self.made[item]


GOOD = Outcome(result="good", cause="all passed", minutes=1, built=True)
BAD = Outcome(result="bad", cause="program: p17 is wrong", level="program", minutes=1, built=True)
BROKEN = Outcome(result="unbuildable", cause="compiling k failed", minutes=1, built=True)


def bisect(answer: Callable[[Hashable], Outcome], budget: Budget = Budget()) -> tuple[Bisect, Function]:  # noqa: B008
    runs = Function(answer)
    return Bisect(runs=runs, budget=budget, on_step=lambda _: None), runs


def packages(
    answer: Callable[[frozenset[str]], Outcome],
    count: int,
    budget: Budget = Budget(),  # noqa: B008
) -> tuple[Bisection, Function]:
    bisection, runs = bisect(lambda item: answer(item if isinstance(item, frozenset) else frozenset()), budget)
    return bisection.packages([f"p{number:02}" for number in range(count)], lambda move: (move,)), runs


@pytest.mark.parametrize("culprit", range(30))
def test_one_of_thirty_packages_is_proven_in_seven_builds(culprit: int) -> None:
    found, runs = packages(lambda chosen: BAD if f"p{culprit:02}" in chosen else GOOD, 30)
    assert (found.end, found.difference) == ("found", (f"p{culprit:02}",))
    assert (found.good, found.bad) == (GOOD, BAD)
    assert found.builds == len(runs.made) <= 7
    assert [step.judged for step in found.steps[:2]] == ["good", "bad"]


def test_another_failure_than_that_of_the_bad_side_is_not_judged() -> None:
    other = BAD.model_copy(update={"level": "static", "cause": "another"})
    found, _ = packages(
        lambda chosen: (
            BAD
            if {"p0", "p1"} <= chosen or "p00" in chosen
            else other
            if "p03" in chosen and "p02" not in chosen
            else GOOD
        ),
        8,
    )
    assert found.difference == ("p00",)
    cured = [BAD.model_copy(update={"suspicions": (Suspicion(kind=kind, confidence=0.9),)}) for kind in ("a", "b")]
    assert not cured[0].fails_as(cured[1])
    assert cured[0].fails_as(BAD)


@pytest.mark.parametrize("first_bad", [1, 9, 30, 45, 63])
def test_commits_that_do_not_compile_are_not_judged(first_bad: int) -> None:
    broken = {number for number in range(20, 30) if number not in {first_bad, first_bad - 1}}
    bisection, runs = bisect(
        lambda item: BROKEN if int(str(item)) in broken else BAD if int(str(item)) >= first_bad else GOOD
    )
    found = bisection.commits([str(number) for number in range(64)])
    assert (found.difference, found.unjudged) == ((str(first_bad),), ())
    assert len(runs.made) <= 2 + 6 + len(broken)
    assert {step.judged for step in found.steps if step.outcome == BROKEN} <= {"unjudged"}


def test_a_first_bad_commit_behind_broken_ones_is_named_with_them() -> None:
    bisection, _ = bisect(lambda item: BROKEN if str(item) in "34" else BAD if int(str(item)) >= 5 else GOOD)
    found = bisection.commits([str(number) for number in range(10)])
    assert (found.difference, found.unjudged) == (("5",), ("3", "4"))
    assert "or one of 2 before it that cannot be judged" in found.sentence


def test_where_the_bad_side_does_not_compile_the_first_that_does_not_is_found() -> None:
    bisection, _ = bisect(lambda item: BROKEN if int(str(item)) >= 6 else GOOD)
    assert bisection.commits([str(number) for number in range(10)]).difference == ("6",)


def test_what_was_run_before_is_known_and_costs_no_budget() -> None:
    answer = {True: BAD, False: GOOD}
    first, runs = packages(lambda chosen: answer["p11" in chosen], 16, Budget(builds=4))
    assert (first.end, len(first.steps)) == ("budget ended", 4)
    bisection = Bisect(runs=runs, budget=Budget(builds=4), on_step=lambda _: None)
    found = bisection.packages([f"p{number:02}" for number in range(16)], lambda move: (move,))
    assert found.difference == ("p11",)
    assert [step.known for step in found.steps] == [True] * 4 + [False] * 2


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda _: BAD, "the good side is bad: program: p17 is wrong"),
        (lambda _: GOOD, "the bad side is good: all passed"),
        (lambda _: Outcome(result="unverified", cause="no GPU"), "the good side is unverified: no GPU"),
    ],
)
def test_ends_that_are_not_as_they_are_called_are_refused(answer: Callable[[Hashable], Outcome], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        packages(answer, 4)


def test_a_phase_that_is_not_known_proves_no_progress() -> None:
    load, capture, unknown = (
        BAD.model_copy(update={"phase": phase, "failure": phase})
        for phase in ("model load", "cuda graph capture", "unknown")
    )
    assert capture.came_further_than(load)
    assert not load.came_further_than(capture)
    assert not unknown.came_further_than(load)
    assert not load.came_further_than(unknown)
    assert load.came_further_than(BROKEN)
    assert [standing_of(load, after) for after in (capture, unknown, load, BROKEN, GOOD)] == [
        "confirmed",
        "open",
        "refuted",
        "refuted",
        "confirmed",
    ]
