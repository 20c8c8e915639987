"""A lock is written whole: killed, interrupted or out of space at any step, its folder holds the old one or the new."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from builder.errors import UsageError
from builder.lock import writing
from builder.lock.writing import exchange, write_lock
from builder.process import run

if TYPE_CHECKING:
    from pathlib import Path

OLD = {"pylock.toml": b"old wheels", "pylock.toolchain.toml": b"old tools", "lock.yaml": b"old"}
NEW = {"pylock.toml": b"new wheels", "pylock.compiler.toml": b"new compiler", "lock.yaml": b"new"}
VERDICT = {"verdict.json": b"{}"}

# Forks once for each step (everything that Python reports to audit hooks: opens, links, renames, removals, …), and in
# the child lets that step end the process, or fail. Prints what was left after each, until no step is left to break.
PROGRAM = """
import base64, json, os, signal, sys
from pathlib import Path
from builder.lock.writing import write_lock

def state(folder):
    return {path.name: path.read_bytes().decode() for path in folder.iterdir()}

def broken(folder, how, step):
    def hook(event, _arguments):
        nonlocal step
        if event.split(".")[0] in ("open", "os", "shutil", "tempfile", "ctypes"):
            step -= 1
            if step == 0:
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(28, "No space left on device") if how == "full" else KeyboardInterrupt
    sys.addaudithook(hook)
    try:
        write_lock(folder, new)
    except BaseException:
        os._exit(2)
    os._exit(0 if step <= 0 else 3)

root, how, old, new = Path(sys.argv[1]), sys.argv[2], *(json.loads(text) for text in sys.argv[3:])
new = {name: text.encode() for name, text in new.items()}
seen = []
for step in range(1, 500):
    folder = root / str(step) / "lockfiles" / "x"
    folder.mkdir(parents=True)
    for name, text in old.items():
        (folder / name).write_text(text)
    child = os.fork()
    if child == 0:
        broken(folder, how, step)
    code = os.waitpid(child, 0)[1]
    left = [path.name for path in folder.parent.iterdir() if path.name != "x"]
    after = state(folder)
    write_lock(folder, new)
    again = [path.name for path in folder.parent.iterdir() if path.name != "x"]
    seen.append({"code": code, "state": after, "left": left, "again": again})
    if os.waitstatus_to_exitcode(code) == 3:  # no step is left
        break
print(json.dumps(seen))
"""


def plain(files: dict[str, bytes]) -> dict[str, str]:
    return {name: data.decode() for name, data in files.items()}


@pytest.mark.parametrize("how", ["kill", "interrupt", "full"])
def test_whatever_breaks_the_writing_leaves_the_old_lock_or_the_new_one(how: str, tmp_path: Path) -> None:
    old, new = plain(OLD | VERDICT), plain(NEW | VERDICT)
    ended = run([sys.executable, "-c", PROGRAM, str(tmp_path), how, json.dumps(old), json.dumps(plain(NEW))])
    assert ended.code == 0, ended.text
    seen = json.loads(ended.stdout)
    assert len(seen) > 15
    assert {json.dumps(step["state"], sort_keys=True) for step in seen} == {
        json.dumps(state, sort_keys=True) for state in (old, new)
    }
    assert {tuple(step["again"]) for step in seen} == {()}
    before = [step for step in seen if step["state"] == old]
    assert len(before) > 10
    if how != "kill":  # what is made is removed, if it is not the making or the removing itself that breaks
        assert len([step for step in before if step["left"]]) <= 1


def test_a_lock_without_a_compiler_takes_the_old_ones_file_away(tmp_path: Path) -> None:
    write_lock(tmp_path / "x", NEW)
    (tmp_path / "x" / "verdict.json").write_bytes(b"{}")
    write_lock(tmp_path / "x", OLD)
    assert {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()} == OLD | VERDICT
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o755


def test_where_folders_cannot_change_places_the_files_are_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lock(tmp_path / "x", OLD)
    (tmp_path / "x" / "verdict.json").write_bytes(b"{}")
    monkeypatch.setattr(writing, "exchange", lambda *_: False)
    write_lock(tmp_path / "x", NEW)
    assert {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()} == NEW | VERDICT
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_folder_that_is_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "x").symlink_to("real")
    write_lock(tmp_path / "x", OLD)
    assert (tmp_path / "x").is_symlink()
    assert (tmp_path / "real" / "lock.yaml").read_bytes() == b"old"


def test_what_a_running_process_makes_is_left_alone(tmp_path: Path) -> None:
    mine, foreign = tmp_path / f".x.{os.getppid()}-abc", tmp_path / ".x.notes"
    for folder in (mine, foreign):
        folder.mkdir()
    write_lock(tmp_path / "x", OLD)
    assert mine.is_dir()
    assert foreign.is_dir()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "lockfiles").write_text("a file")
    with pytest.raises(UsageError, match=r"the lock in .*lockfiles/x cannot be written: (File exists|Not a dir)"):
        write_lock(tmp_path / "lockfiles" / "x", OLD)


def test_paths_that_are_not_there_do_not_change_places(tmp_path: Path) -> None:
    assert not exchange(tmp_path / "a", tmp_path / "b")
