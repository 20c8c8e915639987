"""The shortest proof that pins exclude each other, out of uv's own words; uv itself speaks where an index is served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from packaging.requirements import Requirement

from builder.lock.conflict import UnsatisfiableError, exclude_each_other, find_conflict
from builder.lock.project import local_projects
from builder.lock.python import resolve_python
from builder.lock.refusal import placed
from builder.lock.target import Target
from builder.recipe.source import read_recipe
from builder.settings import settings_from
from builder.store import Store
from tests.package_index import PackageIndex, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRIXIE = Target(python="3.13", glibc=41)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    with serve(PackageIndex()) as served:
        yield served


def refused(index: PackageIndex, folder: Path, *requirements: str, **more: Any) -> UnsatisfiableError:
    settings = settings_from({"ENVBUILD_INDEX_URL": index.url})
    with pytest.raises(UnsatisfiableError) as caught:
        resolve_python(requirements, target=TRIXIE, store=Store(folder / "store"), settings=settings, **more)
    return caught.value


def test_two_packages_that_exclude_each_other_are_named_with_their_bounds(index: PackageIndex, tmp_path: Path) -> None:
    index.add("a", "1.0", "b<2")
    index.add("c", "1.0", "b>=2")
    for version in ("1.0", "2.0"):
        index.add("b", version)
    evidence = refused(index, tmp_path, "a==1.0", "c==1.0").evidence
    assert sorted(evidence[:2]) == ["a==1.0 needs b<2", "c==1.0 needs b>=2"]
    assert evidence[2].startswith("no version of b is both ")
    assert len(evidence) == 3


def test_versions_that_would_be_alternatives_are_no_proof_against_each_other(
    index: PackageIndex, tmp_path: Path
) -> None:
    for number in range(6):
        index.add("m", f"1.{number}", f"b=={number}.0")
        index.add("b", f"{number}.0", f"d>={number}")
        index.add("d", f"{number}.0")
    index.add("a", "1.0", "m>=1.3")
    index.add("c", "1.0", "d<2")
    evidence = refused(index, tmp_path, "a==1.0", "c==1.0").evidence
    assert sorted(evidence[:2]) == [
        "a==1.0 needs m>=1.3, m==1.3 needs b==3.0, b==3.0 needs d>=3",
        "c==1.0 needs d<2",
    ]
    assert evidence[2].startswith("no version of d is both ")
    assert evidence[2].endswith("; other versions of b and m are no way out either")


def test_requirements_of_extras_are_part_of_a_chain(index: PackageIndex, tmp_path: Path) -> None:
    index.add("a", "1.0", "b[x,y]>=1")
    index.add("b", "1.0", "c<2; extra == 'x'", "d; extra == 'y'")
    index.add("d", "1.0", "c>2")
    index.add("c", "1.0")
    index.add("c", "3.0")
    evidence = refused(index, tmp_path, "a==1.0").evidence
    assert "a==1.0 needs b[x]==1.0, b[x]==1.0 needs c<2" in evidence
    assert "a==1.0 needs b[y]==1.0, b[y]==1.0 needs d, d needs c>2" in evidence


def test_a_version_that_does_not_exist_is_explained_by_who_wants_it(index: PackageIndex, tmp_path: Path) -> None:
    index.add("a", "1.0", "b==9.9")
    index.add("b", "1.0")
    assert refused(index, tmp_path, "a==1.0").evidence == ("a==1.0 needs b==9.9", "there is no version of b==9.9")


def test_versions_that_only_a_gap_allows_are_shown_with_those_that_there_are(
    index: PackageIndex, tmp_path: Path
) -> None:
    index.add("a", "1.0", "b>=1.1,<2", "c")
    index.add("c", "1.0", "b!=1.5")
    for version in ("1.0", "1.5", "2.0"):
        index.add("b", version)
    evidence = refused(index, tmp_path, "a==1.0").evidence
    assert evidence[:2] == ("a==1.0 needs b<2,>=1.1", "a==1.0 needs c, c needs b!=1.5")
    assert "b==1.5" in evidence[2]
    assert "are available" in evidence[2]


def test_what_uv_adds_about_the_day_of_the_question_is_kept(index: PackageIndex, tmp_path: Path) -> None:
    index.add("a", "1.0", uploaded="2026-03-01T00:00:00Z")
    evidence = refused(index, tmp_path, "a==1.0", as_of="2026-01-01").evidence
    assert evidence[0] == "a==1.0 is asked for"
    assert evidence[-1].startswith("hint: ")
    assert "2026-03-01" in evidence[-1]


def test_a_package_that_the_index_does_not_have_may_mean_that_the_index_is_wrong(
    index: PackageIndex, tmp_path: Path
) -> None:
    index.add("a", "1.0")
    for pin in ("nosuch==1.0", "a==9.0"):
        remedy = refused(index, tmp_path, pin).remedy
        assert remedy is not None
        assert "ENVBUILD_INDEX_URL" in remedy
        assert f"({index.url} was asked)" in remedy
    index.add("b", "1.0", "a==1.0")
    index.add("c", "1.0", "a!=1.0")
    conflict = refused(index, tmp_path, "b", "c").remedy
    assert conflict is not None
    assert conflict.startswith("change one of the pins")


def test_words_without_a_fact_are_no_proof() -> None:
    assert find_conflict(()) is None
    assert (
        find_conflict(("Because the moon is full, we can conclude that your requirements are unsatisfiable.",)) is None
    )
    known = "And because we know from (1) that m==1.3 depends on d>=3, we can conclude that m cannot be used."
    assert find_conflict((known,)) is None


@pytest.mark.parametrize(
    ("one", "other", "exclude"),
    [
        ("b<2", "b>=2", True),
        ("b<=2", "b>=2", False),
        ("b==2.9.1", "b==2.11.0", True),
        ("b==2.9.*", "b<2.9", True),
        ("b==2.9.*", "b>=2.9.1,<2.9.2", False),
        ("b>1.0,<1.1", "b>=1.0.5", False),
        ("b~=1.4", "b>=2", True),
        ("b~=1.4", "b>=1.9", False),
        ("b!=1.0", "b==1.0", True),
        ("b==1.0+cu130", "b==1.0", False),
        ("b", "b==1.0", False),
        ("b<1", "b<2", False),
    ],
)
def test_bounds_exclude_each_other_where_no_version_fits_both(one: str, other: str, exclude: bool) -> None:
    assert exclude_each_other(Requirement(one), Requirement(other)) is exclude
    assert exclude_each_other(Requirement(other), Requirement(one)) is exclude


RECIPE = """\
version: 1
name: x
target: {gpu: h200}
base: {debian: trixie}
python: "3.13"
stack:
  a: "1.0"
  mine:
    path: mine
"""


def test_each_chain_begins_with_the_place_of_the_recipe_that_asks(index: PackageIndex, tmp_path: Path) -> None:
    index.add("a", "1.0", "b<2")
    index.add("b", "1.0")
    index.add("b", "2.0")
    path = tmp_path / "x.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\ndependencies = ["b < 3, >= 2"]\n', encoding="utf-8"
    )
    source = read_recipe(path)
    projects = local_projects(source)
    error = placed(refused(index, tmp_path, "a==1.0", "b<3,>=2"), source, projects)
    assert error.message.startswith(f"{path}: no set of wheels")
    assert sorted(error.evidence[:2]) == [
        f"{path}:7:3: stack.a: a==1.0 needs b<2",
        f"{path}:8:3: stack.mine: b<3,>=2 is asked for",
    ]
    assert error.exit_code == 6
