"""The committed schema and reference pages are those of the model, and the schema says what the reader accepts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from builder.preflight.reference import preflight_files
from builder.recipe.generated import GeneratedFile, stale_generated, write_generated
from builder.recipe.model import FORMS
from builder.recipe.schema import recipe_files, recipe_schema, schema_text
from builder.recipe.targets import targets

ROOT = Path(__file__).parents[2]


def test_the_committed_schema_and_pages_are_current() -> None:
    assert stale_generated([*recipe_files(), *preflight_files()], ROOT) == ()


def test_a_missing_or_changed_file_is_stale_until_it_is_written(tmp_path: Path) -> None:
    files = (GeneratedFile(path="a/x.md", text="one\n"), GeneratedFile(path="y.md", text="two\n"))
    (tmp_path / "y.md").write_text("two\n", encoding="utf-8")
    assert stale_generated(files, tmp_path) == ("a/x.md",)
    assert write_generated(files, tmp_path) == ("a/x.md",)
    assert (tmp_path / "a/x.md").read_text(encoding="utf-8") == "one\n"
    assert stale_generated(files, tmp_path) == ()
    (tmp_path / "a/x.md").write_text("other\n", encoding="utf-8")
    assert stale_generated(files, tmp_path) == ("a/x.md",)


def test_the_schema_offers_exactly_the_known_gpus() -> None:
    assert recipe_schema()["$defs"]["Target"]["properties"]["gpu"]["enum"] == list(targets())


def test_the_schema_takes_a_package_as_a_version_or_as_a_mapping() -> None:
    (values,) = recipe_schema()["properties"]["stack"]["patternProperties"].values()
    text, mapping = values["anyOf"]
    assert text["type"] == "string"
    assert re.fullmatch(text["pattern"], "0.5.12.post1")
    assert mapping == {"$ref": "#/$defs/Package"}


def test_the_schema_names_keys_as_recipes_write_them() -> None:
    schema = recipe_schema()
    assert "as-of" in schema["properties"]
    assert "shm-size" in schema["$defs"]["Serve"]["properties"]


def test_every_key_of_the_schema_says_what_it_is_for() -> None:
    schema = recipe_schema()
    objects = [schema, *schema["$defs"].values()]
    silent = [key for node in objects for key, value in node["properties"].items() if not value.get("description")]
    assert silent == []


def test_the_schema_has_no_nulls_for_a_person_to_choose() -> None:
    assert '"null"' not in schema_text()


@pytest.mark.parametrize("pattern", sorted(FORMS), ids=lambda pattern: FORMS[pattern][:30])
def test_every_pattern_of_the_schema_has_a_sentence(pattern: str) -> None:
    assert pattern in _patterns(json.loads(schema_text()))
    assert FORMS[pattern].startswith(("a ", "an ", "one "))


def _patterns(node: Any) -> set[str]:
    if isinstance(node, list):
        return set().union(*map(_patterns, node))
    if not isinstance(node, dict):
        return set()
    own = {value for key, value in node.items() if key == "pattern"} | set(node.get("patternProperties", ()))
    return own.union(*map(_patterns, node.values()))
