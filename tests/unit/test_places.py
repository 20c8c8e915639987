"""What a person names for a result is written only where nothing is, and complete or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import BuildFailedError, UsageError
from builder.places import refuse_taken, unfinished


def test_new_places_and_empty_folders_are_free(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refuse_taken([tmp_path / "empty", tmp_path / "new", tmp_path / "deep" / "new.tar"])
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_place_that_holds_something_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "out"
    if kind == "file":
        place.touch()
    elif kind == "folder":
        (place / "thesis").mkdir(parents=True)
    else:
        place.symlink_to("nowhere")
    with pytest.raises(UsageError, match=f"{place} is there already"):
        refuse_taken([tmp_path / "new", place])


def test_two_results_do_not_share_a_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="out is named twice"):
        refuse_taken([tmp_path / "out", tmp_path / "." / "x" / ".." / "out"])


def test_a_result_is_there_when_it_is_complete(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with unfinished(tmp_path / "out") as folder:
        folder.mkdir()
        (folder / "a").write_text("1")
        assert list((tmp_path / "out").iterdir()) == []
    assert (tmp_path / "out" / "a").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_result_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BuildFailedError, match=r"out cannot be written: No such file"), unfinished(tmp_path / "out"):
        Path(tmp_path / "missing").read_bytes()
    assert list(tmp_path.iterdir()) == []


def test_a_place_below_a_file_is_a_wrong_wish_and_not_a_failed_build(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"out cannot be written: "), unfinished(tmp_path / "file" / "out"):
        raise AssertionError("nothing may be done for it")
