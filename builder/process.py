"""The only door to other programs: a command is a list, the answer is a value."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar, NoReturn

from builder.errors import EnvbuildError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Mapping, Sequence


class MissingProgramError(EnvbuildError):
    """A program that this stage needs is not installed."""

    exit_code: ClassVar[int] = 6


class StoppedError(EnvbuildError):
    """The work that wanted to run a program is given up."""


class Programs:
    """The programs that some work runs at a time, in any number of threads, so that they can be ended together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def start(self, begin: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Start a program; raise StoppedError if all were ended."""
        with self._lock:
            if self._ended:
                raise StoppedError("given up")
            process = begin()
            self._running.add(process)
            return process

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """Say that a program has ended."""
        with self._lock:
            self._running.discard(process)

    def end(self) -> None:
        """End all programs that run now, each with its whole session; none is started any more."""
        with self._lock:
            self._ended = True
            for process in self._running:
                _end(process)


PROGRAMS: ContextVar[Programs | None] = ContextVar("PROGRAMS", default=None)
"""Where `run` notes its program for whoever may want to end it: set for a thread by who starts it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completed:
    """How a program ended: exit code (negative: the signal that ended it), and what it printed."""

    code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False

    @property
    def text(self) -> str:
        """Everything printed, output first, as text."""
        return (self.stdout + self.stderr).decode(errors="replace")


def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    without: Collection[str] = (),
    cwd: Path | None = None,
    stdin: bytes = b"",
    timeout: float | None = None,
    on_line: Callable[[str], None] | None = None,
) -> Completed:
    """Run a program to its end in a session of its own, and end the whole session on timeout or interrupt.

    `environment` adds to the caller's own, of which the program does not see the names in `without`; `timeout` is in
    seconds; `on_line` sees each line of standard error live.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in without}
    programs = PROGRAMS.get() or Programs()
    try:
        process = programs.start(lambda: _begin(command, inherited | dict(environment or {}), cwd))
    except FileNotFoundError as error:
        name = command[0]
        if cwd is not None and not cwd.is_dir():
            raise EnvbuildError(f"no such folder: {cwd}") from error
        raise MissingProgramError(
            f"the program {name!r} is not installed", remedy=f"install it, on Debian or Ubuntu: apt-get install {name}"
        ) from None
    collected: dict[str, bytes] = {}
    with process:
        readers = [
            threading.Thread(target=_read, args=(process.stdout, "stdout", collected, None), daemon=True),
            threading.Thread(target=_read, args=(process.stderr, "stderr", collected, on_line), daemon=True),
        ]
        for reader in readers:
            reader.start()
        try:
            timed_out = _feed_and_wait(process, stdin, timeout)
        finally:
            _end(process)
            process.wait()
            programs.forget(process)
        for reader in readers:
            reader.join()
    return Completed(
        code=process.returncode,
        stdout=collected.get("stdout", b""),
        stderr=collected.get("stderr", b""),
        timed_out=timed_out,
    )


def attach(command: Sequence[str], connection: socket.socket) -> None:
    """Let a program read from and write to a connection until it ends; what it says beside that is dropped."""
    with contextlib.suppress(FileNotFoundError):  # whoever speaks through the connection sees it close
        subprocess.run(
            command,
            stdin=connection.fileno(),
            stdout=connection.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )


def become(command: Sequence[str]) -> NoReturn:
    """Turn this process into another program, which gets its terminal and its exit code."""
    try:
        os.execvp(command[0], list(command))  # noqa: S606 - the person's own program, without a shell
    except FileNotFoundError:
        raise MissingProgramError(
            f"the program {command[0]!r} is not installed",
            remedy=f"install it, or run it elsewhere: {shlex.join(command)}",
        ) from None


def _begin(command: Sequence[str], environment: Mapping[str, str], cwd: Path | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=environment,
        start_new_session=True,
    )


def _feed_and_wait(process: subprocess.Popen[bytes], stdin: bytes, timeout: float | None) -> bool:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(stdin)
            process.stdin.close()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        return True
    return False


def _read(
    stream: IO[bytes] | None, name: str, collected: dict[str, bytes], on_line: Callable[[str], None] | None
) -> None:
    lines = []
    for line in stream or ():
        lines.append(line)
        if on_line is not None:
            on_line(line.decode(errors="replace").rstrip())
    collected[name] = b"".join(lines)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and all of its session: ninja starts each compiler in a process group of its own."""
    killed: set[int] = set()
    while living := _session(process.pid) - killed:
        for pid in living:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= living


def _session(leader: int) -> set[int]:
    found = set()
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == leader:
                found.add(pid)
    return found
