"""Whose file lies where two wheels want one path: small wheels, and what pip itself makes of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from builder.build.layerplan import plan_layers
from builder.build.layers import LayerTerms, layer_key
from builder.build.owners import Settled, settle_owners
from builder.build.venv import Venv
from builder.build.wheelfile import WheelLayout, read_layout, record_of
from builder.errors import BuildFailedError
from builder.lock.target import Target
from tests.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
VENV = Venv(python=PYTHON)
SITE = VENV.site_packages
TARGET = Target(python=PYTHON, glibc=36)
Make = Callable[..., WheelLayout]


@pytest.fixture
def wheel(tmp_path: Path) -> Make:
    """Make a wheel and lay it out; keyword arguments are files below `shared/`, with a dot for the last underscore."""

    def make(name: str, *requires: str, script: str = "", **files: bytes) -> WheelLayout:
        paths = {f"shared/{'.'.join(path.rsplit('_', 1))}": data for path, data in files.items()}
        made = make_wheel(tmp_path, name, paths, requires=requires, entry_points=script)
        (tmp_path / made.filename).unlink(missing_ok=True)
        (tmp_path / made.filename).hardlink_to(made.path)  # as pip finds it
        return read_layout(made, VENV)

    return make


def settle(*layouts: WheelLayout, asked: Sequence[str] = ()) -> Settled:
    return settle_owners(layouts, asked, TARGET)


def owners(settled: Settled, path: str = "shared/x.py") -> list[str]:
    """Return the wheels that bring a path."""
    return [layout.wheel.name for layout in settled.layouts if f"{SITE}/{path}" in {file.path for file in layout.files}]


def test_the_file_of_a_wheel_lies_over_that_of_one_that_it_requires(wheel: Make) -> None:
    base, upper = wheel("base", x_py=b"1\n", own_py=b""), wheel("upper", "base==1.0", x_py=b"2\n")
    for order in ((base, upper), (upper, base)):
        settled = settle(*order)
        assert owners(settled) == ["upper"]
        assert owners(settled, "shared/own.py") == ["base"]
        assert [made.name for made in settled.last] == ["upper"]
        assert [layout.wheel for layout in settled.layouts] == [layout.wheel for layout in order]


def test_what_was_laid_over_keeps_its_row_in_record(wheel: Make) -> None:
    base, upper = wheel("base", x_py=b"1\n", own_py=b""), wheel("upper", "base", x_py=b"2\n")
    below, _ = settle(base, upper).layouts
    assert [file.path for file in below.overlaid] == [f"{SITE}/shared/x.py"]
    assert record_of(below, VENV, ()) == record_of(base, VENV, ())
    assert below.sources(VENV) == base.sources(VENV), "byte code depends on what else is compiled with it"
    assert below.size == base.size - 2


def test_a_wheel_lies_over_one_that_it_requires_through_others(wheel: Make) -> None:
    layouts = wheel("base", x_py=b"1\n"), wheel("between", "base"), wheel("upper", "between", x_py=b"2\n")
    assert owners(settle(*layouts)) == ["upper"]


def test_of_several_the_one_that_needs_all_others_stays_and_they_are_installed_in_turn(wheel: Make) -> None:
    layouts = (
        wheel("a", "b", x_py=b"3\n", y_py=b"3\n"),
        wheel("b", "c", x_py=b"2\n", y_py=b"2\n", z_py=b"2\n"),
        wheel("c", x_py=b"1\n", y_py=b"3\n", z_py=b"1\n"),
    )
    settled = settle(*layouts)
    assert owners(settled) == ["a"]
    assert owners(settled, "shared/y.py") == ["a", "c"], "the same bytes may lie in both"
    assert owners(settled, "shared/z.py") == ["b"]
    assert [made.name for made in settled.last] == ["b", "a"]


def test_a_wheel_that_needs_itself_is_installed_before_those_that_lie_over_it(wheel: Make) -> None:
    layouts = (
        wheel("low", x_py=b"1\n", y_py=b"1\n"),
        wheel("mid", "low", "mid[more]; extra == 'all'", x_py=b"2\n", y_py=b"2\n"),
        wheel("aaa", "mid", y_py=b"3\n"),
    )
    assert [made.name for made in settle(*layouts, asked=["mid[all]"]).last] == ["mid", "aaa"]


def test_the_same_bytes_belong_to_both_even_where_one_requires_the_other(wheel: Make) -> None:
    base, upper = wheel("base", x_py=b"1\n"), wheel("upper", "base", x_py=b"1\n")
    assert settle(base, upper) == Settled(layouts=(base, upper))


def refused(*layouts: WheelLayout, asked: Sequence[str] = ()) -> str:
    with pytest.raises(BuildFailedError) as caught:
        settle(*layouts, asked=asked)
    return caught.value.message


def test_two_wheels_that_do_not_require_each_other_are_both_named(wheel: Make) -> None:
    message = refused(wheel("one", x_py=b"1\n"), wheel("two", x_py=b"2\n"))
    assert message == (
        f"one-1.0-py3-none-any.whl and two-1.0-py3-none-any.whl both own {SITE}/shared/x.py, with different bytes, "
        "and neither requires the other"
    )


def test_two_wheels_that_require_each_other_are_refused(wheel: Make) -> None:
    message = refused(wheel("one", "two", x_py=b"1\n"), wheel("two", "between", x_py=b"2\n"), wheel("between", "one"))
    assert message.endswith(f"both own {SITE}/shared/x.py, with different bytes, and each requires the other")


def test_one_wheel_over_two_that_differ_is_no_fault_and_one_over_only_one_of_them_is(wheel: Make) -> None:
    one, two = wheel("one", x_py=b"1\n"), wheel("two", x_py=b"2\n")
    assert owners(settle(one, two, wheel("upper", "one", "two", x_py=b"3\n"))) == ["upper"]
    assert "neither requires the other" in refused(one, two, wheel("beside", "one", x_py=b"3\n"))


@pytest.mark.parametrize(
    ("requirement", "asked", "is_over"),
    [
        ("base; sys_platform == 'linux'", (), True),
        ("base; sys_platform == 'win32'", (), False),
        (f"base; python_version < '{PYTHON}'", (), False),
        ("base; extra == 'cu13'", (), False),
        ("base; extra == 'cu13'", ("upper[cu13]",), True),
        ("base; extra == 'cu13'", ("middle[gpu]",), True),
        ("not a requirement", (), False),
    ],
)
def test_a_requirement_counts_where_its_marker_is_true_with_the_extras_that_are_asked_for(
    wheel: Make, requirement: str, asked: Sequence[str], *, is_over: bool
) -> None:
    layouts = (
        wheel("base", x_py=b"1\n"),
        wheel("upper", requirement, x_py=b"2\n"),
        wheel("middle", "upper[cu13]; extra == 'gpu'"),
    )
    if is_over:
        assert owners(settle(*layouts, asked=asked)) == ["upper"]
    else:
        assert "neither requires the other" in refused(*layouts, asked=asked)


@pytest.mark.parametrize("data", [b"mine", b""])
@pytest.mark.parametrize("name", ["METADATA", "RECORD"])
def test_no_wheel_lies_over_the_metadata_of_another(wheel: Make, tmp_path: Path, name: str, data: bytes) -> None:
    made = make_wheel(tmp_path, "upper", {f"upper-1.0.data/purelib/base-1.0.dist-info/{name}": data}, requires=["base"])
    message = refused(wheel("base"), read_layout(made, VENV))
    place = f"{SITE}/base-1.0.dist-info/{name}"
    assert message.endswith(f"both own {place}, with different bytes, and it is the metadata of one of them")


def test_a_file_of_one_wheel_cannot_be_a_folder_of_another(wheel: Make, tmp_path: Path) -> None:
    made = make_wheel(tmp_path, "upper", {"shared": b""}, requires=["base"])
    message = refused(wheel("base", x_py=b""), read_layout(made, VENV))
    assert message.endswith(f"both own {SITE}/shared, one as a file, one as a folder")


def test_a_wheel_that_lies_over_another_changes_the_layers_of_these_two_only(wheel: Make) -> None:
    terms = LayerTerms(venv=VENV, python="x", epoch=0)

    def keys(*layouts: WheelLayout) -> dict[str, str]:
        plans = plan_layers(settle(*layouts).layouts, stack=[layout.wheel.name for layout in layouts])
        return {plan.title: layer_key(plan, terms) for plan in plans}

    base, other = wheel("base", x_py=b"1\n", y_py=b"1\n"), wheel("other", own_py=b"")
    alone = keys(base, other)
    with_one = keys(base, other, wheel("upper", "base", x_py=b"2\n"))
    with_both = keys(base, other, wheel("upper", "base", x_py=b"2\n", y_py=b"2\n"))
    assert {name for name in alone if alone[name] != with_one[name]} == {"base 1.0"}
    assert {name for name in with_one if with_one[name] != with_both[name]} == {"base 1.0", "upper 1.0"}
    assert alone.keys() | {"upper 1.0"} == with_one.keys()


def test_pip_leaves_the_same_files_where_it_may_follow_the_requirements(wheel: Make, tmp_path: Path) -> None:
    """By name alone pip would install `base` last."""
    script = "[console_scripts]\ntool = shared.x:{}\n"
    settled = settle(
        wheel("base", x_py=b"1\n", own_py=b"", script=script.format("lower")),
        wheel("between", "base"),
        wheel("upper", "between", x_py=b"2\n", script=script.format("upper")),
    )
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-compile", "--ignore-installed", "--quiet"]
    place = ["--find-links", str(tmp_path), "--prefix", str(tmp_path / "env"), "--no-warn-script-location", "upper"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    subprocess.run([*pip, *place], check=True, env={**clean, "PIP_CONFIG_FILE": os.devnull})
    [site] = (tmp_path / "env").rglob("site-packages")
    assert (site / "shared" / "x.py").read_bytes() == b"2\n"
    assert b"upper" in (tmp_path / "env" / "bin" / "tool").read_bytes()
    below = next(layout for layout in settled.layouts if layout.wheel.name == "base")
    assert {file.path for file in below.overlaid} == {f"{SITE}/shared/x.py", f"{VENV.prefix}/bin/tool"}
    ours, theirs = record_of(below, VENV, ()).content, (site / "base-1.0.dist-info" / "RECORD").read_bytes()
    assert isinstance(ours, bytes)
    assert shared_rows(ours) == shared_rows(theirs) != []


def shared_rows(record: bytes) -> list[str]:
    return sorted(row for row in record.decode().splitlines() if row.startswith("shared/"))
