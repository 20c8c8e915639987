"""What a person sees: plain text in a file, colours on a terminal, none where they are not wanted."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table

import builder
from builder.console import Console, InnerConsole, Step
from builder.errors import UsageError
from builder.process import run as run_program

PROGRAM = """
from builder.console import Console
console = Console()
console.heading("a [bold]heading[/]")
console.warn("careful")
with console.step("work [x]") as step:
    console.say("said meanwhile")
    step.end("all of it")
console.verdict("bad", "no")
"""


def on_a_terminal(**environment: str) -> str:
    """Return what a program writes to a terminal."""
    ours, theirs = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    root = str(Path(builder.__file__).parents[1])
    wanted = plain | {"TERM": "xterm-256color", "PYTHONPATH": root} | environment
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=theirs, env=wanted) as process:
        os.close(theirs)
        pieces = []
        while True:
            try:
                pieces.append(os.read(ours, 4096))
            except OSError:  # the other end is closed
                break
        process.wait()
    os.close(ours)
    return b"".join(pieces).decode()


def test_a_terminal_has_colours() -> None:
    seen = on_a_terminal()
    assert "\x1b[1ma [bold]heading[/]\x1b[0m" in seen
    assert "\x1b[1;31mbad\x1b[0m: no" in seen
    assert "said meanwhile" in seen
    assert "work [x]: all of it" in seen


def test_no_color_means_no_colour_and_nothing_bold() -> None:
    seen = on_a_terminal(NO_COLOR="1")
    assert "a [bold]heading[/]\r\n" in seen
    assert "bad: no\r\n" in seen
    assert "\x1b[1m" not in seen
    assert "\x1b[1;3" not in seen
    assert "\x1b[3" not in seen


def test_a_file_has_plain_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    console = Console()
    console.error(UsageError("wrong [red]", remedy="right", evidence=("seen",)))
    with pytest.raises(ZeroDivisionError), console.step("work"):
        raise ZeroDivisionError
    said = capsys.readouterr().err
    assert said.startswith("error: wrong [red]\n  | seen\n  → right\n  ✗ work (0.")


def test_colours_may_be_asked_for_in_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    Console().warn("x")
    assert capsys.readouterr().err == "  \x1b[33m!\x1b[0m x\n"


def test_a_document_holds_names_that_are_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    Console().document({"path": "a\udcffb"})
    written = capsys.readouterr().out
    assert json.loads(written) == {"path": "a\udcffb"}
    written.encode()


def test_a_table_in_a_pipe_has_no_spaces_at_the_ends_of_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name", "what", box=None)
    table.add_row("short", "x")
    table.add_row("long", "x" * 30)
    Console().show(table)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 2
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_table_shows_what_programs_said_as_they_said_it(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("why", box=None)
    table.add_row("[/usr/bin] closes [red] :smile:")
    Console().show(table)
    assert "[/usr/bin] closes [red] :smile:" in capsys.readouterr().out


def test_a_document_is_whole_where_the_terminal_knows_few_characters() -> None:
    ended = run_program(
        [sys.executable, "-c", "from builder.console import Console; Console().document({'a': '→ é 🙂'})"],
        environment={"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(builder.__file__).parents[1])},
    )
    assert json.loads(ended.stdout) == {"a": "→ é 🙂"}


def test_what_is_shown_beside_a_step_is_the_text_as_it_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown: list[str] = []
    outer = Step("run 1", None)
    monkeypatch.setattr(Step, "detail", lambda _self, text: shown.append(text))
    inner = InnerConsole(outer)
    inner.warn("no such place: [/usr/bin]")
    inner.error(UsageError("closed [/bold] and [red]"))
    with inner.step("work [/x]"):
        pass
    assert shown[0] == "! no such place: [/usr/bin]"
    assert shown[1] == "error: closed [/bold] and [red]"
    assert shown[-1] == "work [/x]"
