"""Every complaint about a recipe: where it points, what it says, and that no text at all can crash the reader.

A case is a folder of `tests/cases/recipe`: `recipe.yaml`, and `expected.txt` with every complaint. `UPDATE_CASES=1`
writes `expected.txt` anew.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import InvalidDocumentError, UsageError
from builder.recipe.model import Recipe
from builder.recipe.reading import complaint_lines
from builder.recipe.source import RecipeFile, parse_recipe, read_recipe

if TYPE_CHECKING:
    from builder.recipe.yaml_text import Location, Place

ROOT = Path(__file__).parents[2]
CASES = sorted(path.parent for path in (ROOT / "tests/cases/recipe").glob("*/recipe.yaml"))
GOOD = """\
version: 1
name: tiny
target: {gpu: rtx-pro-6000}
base: {debian: bookworm}
python: "3.11"
as-of: 2026-06-30
stack:
  torch: "2.9.1"
  flash-attn:
    version: "2.8.3"
    build: {archs: ["12.0"]}
"""
WORDS = st.sampled_from(
    (
        *("version", "name", "stack", "torch", "serve", "args", "on", "3.10", "1", "!!int", ".inf", "0x1f", "1:30.5"),
        *("{", "}", "[", "]", ": ", "- ", "? ", "\n", "  ", "\t", "&a", "*a", "<<", "'", '"', "#", "|", "~"),
        *("\u2028", "\ufeff", "\x85", "%YAML 1.1\n---"),
    )
)


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_a_wrong_recipe_gets_every_complaint_at_once(folder: Path) -> None:
    recipe, complaints = parse_recipe((folder / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe is None
    expected = folder / "expected.txt"
    said = "".join(f"{line}\n" for line in complaint_lines(complaints, "recipe.yaml"))
    if os.environ.get("UPDATE_CASES"):
        expected.write_text(said, encoding="utf-8")
    assert said == expected.read_text(encoding="utf-8")


def test_a_day_that_is_still_to_come_is_refused_where_it_stands() -> None:
    today = datetime.now(UTC).date()
    tomorrow = today + timedelta(days=1)
    recipe, complaints = parse_recipe(GOOD.replace("2026-06-30", str(tomorrow)))
    assert recipe is None
    (line,) = complaint_lines(complaints, "r.yaml")
    assert line == (
        f"r.yaml:6:1: as-of: {tomorrow} is in the future: nobody knows yet what will be published; "
        f"the latest day to take is today, {today}"
    )
    assert parse_recipe(GOOD.replace("2026-06-30", str(today)))[1] == ()


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder"])
def test_what_is_no_file_is_not_read(kind: str, tmp_path: Path) -> None:
    place = {"a pipe": tmp_path / "pipe.yaml", "a device": Path("/dev/zero"), "a folder": tmp_path}[kind]
    if kind == "a pipe":
        os.mkfifo(place)
    with pytest.raises(UsageError, match=f"{place}: this is {kind}, not a file"):
        read_recipe(place)


def test_a_right_recipe_has_no_complaint_and_keeps_what_it_says() -> None:
    recipe, complaints = parse_recipe(GOOD)
    assert complaints == ()
    assert recipe is not None
    assert (recipe.python, recipe.as_of) == ("3.11", "2026-06-30")
    assert recipe.stack["torch"].version == "2.9.1"
    assert recipe.stack["flash-attn"].build is not None
    assert recipe.stack["flash-attn"].build.archs == ("12.0",)


def test_a_number_too_large_for_a_computer_stays_the_text_that_was_written() -> None:
    recipe, _ = parse_recipe(GOOD + "serve: {engine: sglang, args: {x: 1.0e+400, y: 1234567890123456789012, z: 0.5}}\n")
    assert recipe is not None
    assert recipe.serve is not None
    assert recipe.serve.args == {"x": "1.0e+400", "y": "1234567890123456789012", "z": 0.5}


def test_the_plain_form_of_a_recipe_reads_as_the_same_recipe() -> None:
    recipe, _ = parse_recipe(GOOD)
    assert recipe is not None
    assert Recipe.from_json(recipe.model_dump_json(by_alias=True), source="plain") == recipe


def test_a_recipe_file_knows_the_line_and_column_of_each_key(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(GOOD, encoding="utf-8")
    file = read_recipe(path)
    assert file.folder == tmp_path
    assert file.places["stack", "flash-attn", "build", "archs"] == (11, 13)
    assert file.places["stack", "flash-attn", "build", "archs", 0] == (11, 21)


def test_a_wrong_file_ends_with_exit_code_3_and_its_places(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(GOOD.replace("torch:", "Torch:").replace('"3.11"', "3.11"), encoding="utf-8")
    with pytest.raises(InvalidDocumentError) as caught:
        read_recipe(path)
    assert caught.value.exit_code == 3
    first, second = caught.value.message.splitlines()
    assert first == f"{path}:5:1: python: YAML reads 3.11 as the number 3.11; write '3.11' in quotes"
    assert second.startswith(f"{path}:8:3: stack.Torch: 'Torch' is not a name")


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "quickstart.yaml").write_text(GOOD, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_recipe(tmp_path / "quikstart.yaml")
    assert caught.value.remedy == f"did you mean {tmp_path / 'quickstart.yaml'}?"


def test_a_file_that_is_no_text_names_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_bytes(b"version: 1\n\xff")
    with pytest.raises(InvalidDocumentError, match="byte 11 is not UTF-8"):
        read_recipe(path)


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS, max_size=40).map("".join) | st.text(max_size=80))
def test_any_text_gives_a_recipe_or_complaints(text: str) -> None:
    recipe, complaints = parse_recipe(text)
    assert (recipe is None) == bool(complaints)
    assert all(complaint.line >= 1 and complaint.column >= 1 and complaint.message for complaint in complaints)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(GOOD)), st.integers(0, 12), WORDS | st.text(max_size=6))
def test_a_recipe_damaged_anywhere_gives_a_recipe_or_complaints(start: int, length: int, text: str) -> None:
    recipe, complaints = parse_recipe(GOOD[:start] + text + GOOD[start + length :])
    assert (recipe is None) == bool(complaints)


@pytest.mark.parametrize(
    "text", ["[" * 5000, "{a: " * 5000, "- " * 5000, "&a [" * 100, "x" * 600_000, "a: " + "9" * 9000]
)
def test_a_text_built_to_exhaust_the_reader_is_only_a_complaint(text: str) -> None:
    recipe, complaints = parse_recipe(text)
    assert recipe is None
    assert complaints


@pytest.mark.parametrize(("known", "place"), [(True, "r.yaml:5:3: stack.x.path"), (False, "r.yaml: stack.x.path")])
def test_a_key_that_is_left_out_is_placed_at_the_key_above_it(known: bool, place: str) -> None:
    recipe, _ = parse_recipe(GOOD)
    assert recipe is not None
    places: dict[Location, Place] = {("stack", "x"): (5, 3)} if known else {}
    assert RecipeFile(path=Path("r.yaml"), recipe=recipe, places=places).place_of("stack", "x", "path") == place
