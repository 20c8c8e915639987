"""Which layers an environment has."""

from __future__ import annotations

from pathlib import Path

from builder.build.layerplan import BUCKETS, LARGE, LayerPlan, plan_layers
from builder.build.tarlayer import File
from builder.build.wheelfile import WheelInput, WheelLayout

SITE = "/opt/env/lib/python3.13/site-packages"
MOST_LAYERS = 120


def layout(name: str, size: int = 10, **files: bytes) -> WheelLayout:
    wheel = WheelInput(name=name, version="1.0", filename=f"{name}.whl", sha256=name, path=Path(name))
    own = File(path=f"{SITE}/{name}/big", size=size, content=b"")
    extra = [File(path=f"{SITE}/{path}", size=len(data), content=data) for path, data in files.items()]
    return WheelLayout(wheel=wheel, files=(own, *extra), record=f"{SITE}/{name}-1.0.dist-info/RECORD")


def test_the_environment_comes_first_then_the_largest_wheels_then_buckets() -> None:
    python = {"x.py": b""}
    wheels = [layout("small"), layout("large", LARGE, **python), layout("larger", 2 * LARGE, **python)]
    plans = plan_layers(wheels)
    assert [plan.title for plan in plans] == ["environment", "larger 1.0", "large 1.0", "small 1.0"]
    assert plans[0].layouts == ()


def test_what_a_recipe_pins_lies_above_what_comes_with_it_each_by_itself_and_the_papers_above_all() -> None:
    wheels = [layout("torch", 3 * LARGE), layout("cublas", 2 * LARGE), layout("small"), layout("other")]
    paper = File(path="/usr/share/envbuild/recipe.yaml", size=1, content=b"1")
    plans = plan_layers(wheels, (paper,), stack=("torch", "small"))
    titles = ["environment", "cublas 1.0", "other 1.0", "torch 1.0", "small 1.0", "recipe and lock"]
    assert [plan.title for plan in plans] == titles
    assert plans[-1].papers == (paper,)


def test_large_wheels_without_python_files_lie_below_those_with_them_the_smallest_first() -> None:
    python = {"x.py": b""}
    wheels = [layout("triton", 3 * LARGE, **python), layout("cublas", 2 * LARGE), layout("sympy", LARGE, **python)]
    plans = plan_layers([*wheels, layout("nccl", LARGE), layout("torch", LARGE)], stack=("torch",))
    titles = ["nccl 1.0", "cublas 1.0", "triton 1.0", "sympy 1.0", "torch 1.0"]
    assert [plan.title for plan in plans][1:] == titles


def test_wheels_of_one_size_are_ordered_by_name() -> None:
    one, other = layout("one", LARGE), layout("other", LARGE)
    assert plan_layers([other, one]) == plan_layers([one, other])


def test_another_small_package_changes_one_bucket_only() -> None:
    before = plan_layers([layout(f"p{number}") for number in range(100)])
    after = plan_layers([layout(f"p{number}") for number in range(101)])
    changed = set(after) - set(before)
    assert len(before) == BUCKETS + 1
    assert ["p100 1.0" in plan.title for plan in changed] == [True]


def test_a_bucket_follows_from_the_normalized_name() -> None:
    def mates(name: str) -> set[int]:
        plans = plan_layers([layout(name), *(layout(f"p{number}") for number in range(200))])
        return {index for index, plan in enumerate(plans) if f"{name} 1.0" in plan.title}

    assert mates("Foo_Bar") == mates("foo-bar")


def test_the_layers_stay_below_what_an_engine_can_stack() -> None:
    wheels = [layout(f"large{n}", LARGE + n) for n in range(300)] + [layout(f"small{n}") for n in range(300)]
    plans = plan_layers(wheels)
    assert len(plans) + 1 < MOST_LAYERS
    assert sum(len(plan.layouts) for plan in plans) == 600
    assert [plans[1].title, plans[100].title] == ["large200 1.0", "large299 1.0"], "the largest have their own"


def test_an_environment_without_wheels_is_one_layer() -> None:
    assert plan_layers([]) == (LayerPlan(title="environment"),)
