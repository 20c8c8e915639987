from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from builder.document import Document, canonical_json, canonical_yaml, key_of, tree_digest, write_atomic
from builder.errors import InvalidDocumentError

if TYPE_CHECKING:
    from pathlib import Path


class Pair(Document):
    name: str
    count: int = 0


def test_canonical_json_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical_json({"b": 1, "a": [1, "é"]}) == '{"a":[1,"é"],"b":1}'.encode()
    assert key_of({"b": 1, "a": 2}) == key_of({"a": 2, "b": 1})
    assert key_of({"a": 2}) != key_of({"a": 3})


def test_canonical_yaml_keeps_long_lines_whole_and_repeats_what_is_shared() -> None:
    shared = ["x" * 300]
    text = canonical_yaml({"a": shared, "b": shared}).decode()
    assert "&" not in text
    assert text.count("x" * 300) == 2


def test_a_document_refuses_unknown_keys_and_names_the_place() -> None:
    with pytest.raises(InvalidDocumentError, match=r"verdict\.json: cuont: "):
        Pair.from_json('{"name": "a", "cuont": 1}', source="verdict.json")


def test_a_document_refuses_a_number_where_text_is_meant() -> None:
    with pytest.raises(InvalidDocumentError, match="name"):
        Pair.from_json('{"name": 3}', source="x")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.yaml"
    write_atomic(path, b"old")

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["lock.yaml"]


def test_a_tree_digest_covers_names_bytes_and_the_executable_bit(tmp_path: Path) -> None:
    file = tmp_path / "a.cu"
    file.write_text("kernel")
    first = tree_digest(tmp_path)
    file.write_text("kerneL")
    second = tree_digest(tmp_path)
    file.chmod(0o755)
    third = tree_digest(tmp_path)
    file.rename(tmp_path / "b.cu")
    assert len({first, second, third, tree_digest(tmp_path)}) == 4


def test_a_tree_digest_ignores_what_running_the_code_leaves_behind(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    first = tree_digest(tmp_path)
    for name in ("__pycache__/a.pyc", "pkg.egg-info/PKG-INFO", ".git/HEAD"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("left over")
    assert tree_digest(tmp_path) == first


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.yaml"
    write_atomic(path, b"old")

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"new")
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("lock.yaml", b"old")]
