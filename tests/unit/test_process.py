from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from builder.process import MissingProgramError, run


def test_a_program_that_fails_is_an_answer() -> None:
    ended = run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (ended.code, ended.stdout, ended.stderr) == (3, b"out\n", b"err\n")


def test_lines_of_standard_error_are_seen_as_they_come() -> None:
    seen: list[str] = []
    run(["sh", "-c", "echo one >&2; echo two >&2; echo no"], on_line=seen.append)
    assert seen == ["one", "two"]


def test_a_missing_program_is_named_with_its_remedy() -> None:
    with pytest.raises(MissingProgramError, match="'no-such-program' is not installed") as error:
        run(["no-such-program"])
    assert "apt-get install no-such-program" in error.value.remedy


@pytest.mark.parametrize("group", [None, 0], ids=["one group", "a group for each child, as ninja does"])
def test_a_timeout_ends_the_whole_session(tmp_path: Path, group: int | None) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen(['sleep', '60'], process_group={group}, stdout=-3, stderr=-3)\n"
        "open(sys.argv[1], 'w').write(str(child.pid))\n"
        "child.wait()\n"
    )
    ended = run([sys.executable, "-c", code, str(pid_file)], timeout=2.0)
    assert ended.timed_out
    child = int(pid_file.read_text())
    for _ in range(100):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        if _is_zombie(child):
            return
        time.sleep(0.05)
    pytest.fail(f"process {child} is still running")


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_standard_input_reaches_the_program() -> None:
    assert run(["cat"], stdin=b"hello").stdout == b"hello"
