"""The folder of rendered files: what envbuild renders is written and removed, what a person keeps there stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.build.render import stale_dockerfiles, write_dockerfiles

if TYPE_CHECKING:
    from pathlib import Path

RENDERED = {"Dockerfile": "FROM scratch\n", "requirements.txt": ""}


def test_files_of_other_names_stay_and_say_nothing(tmp_path: Path) -> None:
    swap = tmp_path / ".Dockerfile.swp"
    swap.write_bytes(b"\xff\xfe")
    (tmp_path / "notes").mkdir()
    assert write_dockerfiles(RENDERED, tmp_path) == ("Dockerfile", "requirements.txt")
    assert stale_dockerfiles(RENDERED, tmp_path) == ()
    assert swap.read_bytes() == b"\xff\xfe"
    assert (tmp_path / "notes").is_dir()


def test_a_rendered_file_that_is_no_text_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_bytes(b"\xff\xfe")
    assert write_dockerfiles(RENDERED, tmp_path) == ("Dockerfile", "requirements.txt")
    assert (tmp_path / "Dockerfile").read_text() == "FROM scratch\n"


def test_a_file_that_is_rendered_no_more_goes(tmp_path: Path) -> None:
    write_dockerfiles({**RENDERED, "Dockerfile.toolchain": "FROM scratch\n"}, tmp_path)
    assert write_dockerfiles(RENDERED, tmp_path) == ("Dockerfile.toolchain",)
    assert not (tmp_path / "Dockerfile.toolchain").exists()
