"""The matrix file: its cells, its complaints with line and column, the jobs that CI runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from builder.errors import InvalidDocumentError, UsageError
from builder.matrix.cells import cells_of, find_cells
from builder.matrix.github import job_matrices
from builder.matrix.grid import read_matrix
from builder.matrix.waves import apart, compiled_first, leaders_of

if TYPE_CHECKING:
    from pathlib import Path

    from builder.matrix.cells import Cell

RECIPE = """\
version: 1
name: {name}
target: {{gpu: rtx-pro-6000}}
base: {{debian: trixie}}
python: "3.13"
cuda: "13.1"
stack:
  torch: "2.11.0"
  kernels: {{git: "https://example.org/k.git", commit: "{commit}", build: {{}}}}
smoke: {{require: [static]}}
"""
MATRIX = """\
version: 1
name: stacks
recipe: recipes/{stack}.yaml
axes:
  stack: [one, two]
  torch: ["2.11.0", "2.6.0"]
  target: [rtx-pro-6000, h200]
exclude:
  - cells: {stack: two, torch: "2.6.0"}
    reason: nobody runs two on this
include:
  - cell: {stack: one, target: b200}
    reason: one machine of the office
expect:
  - cells: {torch: "2.6.0", target: h200}
    result: bad
    reason: it never worked there
runners:
  rtx-pro-6000: [self-hosted, gpu, sm120]
  default: [ubuntu-24.04]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "recipes").mkdir()
    for name in ("one", "two"):
        text = RECIPE.format(name=name, commit=("a" if name == "one" else "b") * 40)
        (tmp_path / "recipes" / f"{name}.yaml").write_text(text, encoding="utf-8")
    return tmp_path


def cells(project: Path, text: str = MATRIX) -> dict[str, Cell]:
    (project / "matrix.yaml").write_text(text, encoding="utf-8")
    return {cell.name: cell for cell in cells_of(read_matrix(project / "matrix.yaml"))}


def test_the_cells_are_the_grid_and_what_is_included_with_the_reasons_of_what_is_not_run(project: Path) -> None:
    found = cells(project)
    assert len(found) == 9
    assert found["two_2.6.0_h200"].excluded == "nobody runs two on this"
    assert found["one_b200"].added == "one machine of the office"
    assert found["one_b200"].gpu == "b200"
    assert "nvcc 13.1" in str(found["one_2.6.0_h200"].refused)
    assert "torch 2.6.0" in str(found["one_2.6.0_rtx-pro-6000"].refused)
    assert found["one_2.6.0_h200"].expected is not None
    assert [name for name, cell in found.items() if cell.to_run] == [
        "one_2.11.0_rtx-pro-6000",
        "one_2.11.0_h200",
        "two_2.11.0_rtx-pro-6000",
        "two_2.11.0_h200",
        "one_b200",
    ]


def test_a_cell_edits_only_what_its_recipe_says_otherwise(project: Path) -> None:
    found = cells(project)
    assert found["one_2.11.0_rtx-pro-6000"].edits == {}
    assert found["one_2.6.0_h200"].edits == {"stack.torch.version": "2.6.0", "target.gpu": "h200"}
    assert found["two_2.11.0_h200"].source.recipe.name == "two"


def test_a_cell_can_leave_a_package_out(project: Path) -> None:
    axes = 'axes: {stack: [one], overrides.triton: [absent, "3.4.0"]}\n'
    found = cells(project, MATRIX.partition("axes:")[0] + axes)
    assert {name: cell.edits for name, cell in found.items()} == {
        "one_absent": {"overrides.triton": "absent"},
        "one_3.4.0": {"overrides.triton": "3.4.0"},
    }


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ("exclude:", "exlude:", "8:1: exlude", "unknown key (did you mean exclude?)"),
        ("reason: nobody runs two on this", "reason: so", "10:5: exclude.0.reason", "at least 8"),
        ('"2.6.0"]', "2.6]", "6:21: axes.torch.1", "write '2.6' in quotes"),
        ("torch: [", "torhc: [", "9:25: exclude.0.cells.torch", "no axis has this name"),
        ("[rtx-pro-6000, h200]", "[rtx-pro-600, h200]", "7:12: axes.target.0", "did you mean rtx-pro-6000?"),
        ("{stack: two, torch", "{stack: tow, torch", "9:13: exclude.0.cells.stack", "'tow' is no value of this axis"),
        ("[one, two]", "[one, two, three]", "3:1: recipe", "there is no recipe"),
        ("{stack}.yaml", "{stak}.yaml", "3:1: recipe", "{stak} is no axis"),
        (
            "  torch: [",
            "  overrides.lib: [gone, ",
            "6:19: axes.overrides.lib.0",
            "lib.version: 'gone' is not one exact version",
        ),
        ("  torch: [", "  overrides.lib.version: [", "6:27: axes.overrides.lib.version.0", "a version or `absent`"),
        ("  torch: [", "  base.debian: [sid, ", "6:17: axes.base.debian.0", "'sid' is not one of bookworm, trixie"),
        ("  torch: [", "  base.suite: [", "6:16: axes.base.suite.0", "base.suite: unknown key (known here: debian"),
        ("  torch: [", "  smoke.timeout: [", "6:19: axes.smoke.timeout.0", "no axis changes `smoke`"),
        (
            "  target: [",
            '  stack.torch.version: ["2.11.0"]\n  target: [',
            "7:25",
            "stack.torch.version, as the axis torch",
        ),
        (
            "  target: [",
            "  target.gpu: [h200]\n  target: [",
            "8:12: axes.target.0",
            "target.gpu, as the axis target.gpu",
        ),
        ("rtx-pro-6000: [", "rtx-pro-600: [", "19:3: runners.rtx-pro-600", "did you mean rtx-pro-6000?"),
        ("[one, two]", "[]", "5:3: axes.stack", "at least one"),
        ("  torch: [", "  nothere: [", "6:", "no package 'nothere'"),
        ("{stack: one, target: b200}", "{target: b200}", "12:5: include.0", "the recipe needs a value of stack"),
        ("target: b200}", 'torch: "2.11.0", target: h200}', "12:5: include.0", "is there twice"),
        ("result: bad", "result: bda", "16:5: expect.0.result", "did you mean bad?"),
    ],
)
def test_what_is_wrong_is_told_with_line_and_column(
    project: Path, old: str, new: str, place: str, message: str
) -> None:
    text = MATRIX.replace(old, new, 1)
    if new.startswith("  ") or "2.6]" in new:
        text = text.split("exclude:", 1)[0]
    with pytest.raises(InvalidDocumentError) as caught:
        cells(project, text)
    assert f"matrix.yaml:{place}" in caught.value.message
    assert message in caught.value.message


def test_a_grid_that_is_too_large_is_refused_before_it_is_made(project: Path) -> None:
    many = ", ".join(f'"{number}"' for number in range(300))
    with pytest.raises(InvalidDocumentError, match="1200 cells are more than 256"):
        cells(project, MATRIX.replace('["2.11.0", "2.6.0"]', f'["2.6.0", {many.rsplit(", ", 1)[0]}]'))


def test_a_name_that_no_cell_has_is_a_usage_error(project: Path) -> None:
    found = tuple(cells(project).values())
    with pytest.raises(UsageError, match="no cell is named x"):
        find_cells(found, ("x",))
    assert [cell.name for cell in find_cells(found, ("one_b200",))] == ["one_b200"]


def axes(project: Path, lines: str) -> dict[str, Cell]:
    """Return the cells of a matrix with these axes and no rules."""
    return cells(project, f"version: 1\nname: stacks\nrecipe: recipes/one.yaml\naxes:\n{lines}")


@pytest.mark.parametrize("other", ["base.debian: [trixie, bookworm]", 'cuda: ["13.1", "13.0"]', "target: [b200, h200]"])
def test_cells_that_compile_otherwise_wait_for_nobody(project: Path, other: str) -> None:
    assert set(leaders_of(axes(project, f"  {other}\n").values()).values()) == {None}


def test_of_cells_that_compile_the_same_one_goes_first(project: Path) -> None:
    found = axes(project, '  as-of: ["2026-01-01", "2026-01-02"]\n  target: [b200, h200]\n')
    assert leaders_of(found.values()) == {
        "2026-01-01_b200": None,
        "2026-01-01_h200": None,
        "2026-01-02_b200": "2026-01-01_b200",
        "2026-01-02_h200": "2026-01-01_h200",
    }


def test_what_cells_compile_alike_is_compiled_for_the_first_of_them(project: Path) -> None:
    found = axes(project, '  as-of: ["2026-01-01", "2026-01-02"]\n  target: [b200, h200]\n')
    assert [cell.name for cell in compiled_first(found.values()).values()] == ["2026-01-01_b200", "2026-01-01_h200"]


def test_cells_of_one_stack_stand_apart_so_that_none_waits_for_the_layers_of_another(project: Path) -> None:
    found = axes(project, '  as-of: ["2026-01-01", "2026-01-02"]\n  target: [b200, h200, rtx-pro-6000]\n')
    assert [cell.name for cell in apart(found.values())] == [
        "2026-01-01_b200",
        "2026-01-02_b200",
        "2026-01-01_h200",
        "2026-01-02_h200",
        "2026-01-01_rtx-pro-6000",
        "2026-01-02_rtx-pro-6000",
    ]


def test_the_jobs_have_the_runners_of_their_gpu_and_leave_out_what_is_known(project: Path) -> None:
    file_cells = tuple(cells(project).values())
    matrix = read_matrix(project / "matrix.yaml").matrix
    jobs = job_matrices(matrix, file_cells, ["one_2.11.0_h200"])
    assert {job.cell: job.runner for job in jobs.first}["one_2.11.0_rtx-pro-6000"] == ("self-hosted", "gpu", "sm120")
    assert {job.cell: job.runner for job in jobs.first}["two_2.11.0_h200"] == ("ubuntu-24.04",)
    assert set(jobs.skipped) == {
        "one_2.11.0_h200",
        "one_2.6.0_rtx-pro-6000",
        "one_2.6.0_h200",
        "two_2.6.0_rtx-pro-6000",
        "two_2.6.0_h200",
    }
    outputs = dict(line.split("=", 1) for line in jobs.output_lines().splitlines())
    assert json.loads(outputs["first"])["include"][0]["recipe"] == "one"
    assert (outputs["any-first"], outputs["any-rest"]) == ("true", "false")
