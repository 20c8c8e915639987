"""A server under observation: its log kept within bounds, and all its processes ended for sure."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import IO, TYPE_CHECKING, Any

from builder.verify.probe.processes import become_reaper, below, collect, command_of, kill_below, send

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

HEAD_BYTES, TAIL_BYTES, NOTABLE_LINES, LINE_BYTES = 64 << 10, 256 << 10, 60, 600
SHOWN_BYTES, SHOWN_EVERY = 1 << 20, 0.5
NOTABLE = (b"Assertion", b"Traceback", b"Error", b"error:", b"NaN", b"Unsupported", b"not found in", b"NCCL WARN")
GUARD = "builder.verify.probe.guard"
COMPILERS = {"nvcc", "cicc", "ptxas", "nvlink", "ninja", "cudafe++", "cc1plus", "c++", "g++", "tileiras"}
STACKS_SECONDS = 1.0
_READ_BYTES = 1 << 16
_LOOK_EVERY = 0.05


class Log:
    """What a server prints: the beginning, the end, and between them the lines that speak of errors.

    Memory and work stay small whatever comes: after SHOWN_BYTES only a line now and then is passed on.
    """

    def __init__(self, on_chunk: Callable[[bytes], None]) -> None:
        self.size = 0
        self._head, self._tail = bytearray(), bytearray()
        self._notable: list[bytes] = []
        self._shown = 0.0
        self._on_chunk = on_chunk

    def follow(self, stream: IO[bytes]) -> None:
        """Read to the end of the stream."""
        while chunk := os.read(stream.fileno(), _READ_BYTES):
            self.add(chunk)

    def add(self, chunk: bytes) -> None:
        """Take what was printed."""
        self.size += len(chunk)
        if len(self._head) < HEAD_BYTES:
            self._head += chunk
        elif len(self._notable) < NOTABLE_LINES:
            self._note(chunk)
        self._tail += chunk
        del self._tail[:-TAIL_BYTES]
        self._on_chunk(chunk)
        self._show(chunk)

    def lines(self) -> list[str]:
        """Return what was kept, with a line that says what was left out."""
        if self.size <= TAIL_BYTES:
            return _lines(bytes(self._tail))
        gap = f"[... {self.size} bytes in all: from here on only lines that speak of errors, then the end ...]"
        return [
            *_lines(bytes(self._head)),
            gap,
            *_lines(b"\n".join(self._notable)),
            "[...]",
            *_lines(bytes(self._tail)),
        ]

    def _note(self, chunk: bytes) -> None:
        """Keep the lines that speak of errors; whole chunks without such a word cost next to nothing."""
        if not any(word in chunk for word in NOTABLE):
            return
        found = [line[:LINE_BYTES] for line in chunk.splitlines() if any(word in line for word in NOTABLE)]
        self._notable += [line for line in found if line not in self._notable][: NOTABLE_LINES - len(self._notable)]

    def _show(self, chunk: bytes) -> None:
        now = time.monotonic()
        if self.size > SHOWN_BYTES:
            if now - self._shown < SHOWN_EVERY:
                return
            chunk = chunk.rstrip().rpartition(b"\n")[2][:LINE_BYTES] + b"\n"
        self._shown = now
        sys.stderr.write(chunk.decode(errors="replace"))
        sys.stderr.flush()


class Server:
    """A running server and everything that it starts, behind a guard that ends it all should this process be killed."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], on_chunk: Callable[[bytes], None], *, cwd: str
    ) -> None:
        become_reaper()
        self.log = Log(on_chunk)
        self._process = subprocess.Popen(
            [sys.executable, "-m", GUARD, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=cwd,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self.log.follow, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    @property
    def code(self) -> int | None:
        """The exit code (negative: the signal) of the process that was started; None while it runs."""
        return self._process.poll()

    def compilers(self) -> list[str]:
        """Return the command lines of the compilers that the server runs at the moment."""
        return [command for pid in below(os.getpid()) if _is_compiler(command := command_of(pid))]

    def interrogate(self) -> list[str]:
        """Make every Python process of a server that hangs print where it stands; return the compilers that run.

        The stacks go to the log; needs PYTHONFAULTHANDLER=1 in its environment. The server does not survive it.
        """
        compilers = self.compilers()
        for pid in below(os.getpid()):
            if pid != self._process.pid:
                send(pid, signal.SIGABRT)
        time.sleep(STACKS_SECONDS)
        return compilers

    def end(self, patience: float) -> dict[str, Any]:
        """End it: ask politely, wait up to `patience` seconds, then kill every process that descends from here."""
        start = time.monotonic()
        how = "exited" if self.code is not None else "terminated"
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)  # the guard does not hear it
            try:
                self._process.wait(patience)
            except subprocess.TimeoutExpired:
                how = "killed"
        left = [] if how == "killed" else [command for pid in below(os.getpid()) if (command := command_of(pid))]
        while kill_below(os.getpid()):
            self._process.wait()
            collect()
            time.sleep(_LOOK_EVERY)
        self._reader.join(patience)
        seconds = round(time.monotonic() - start, 3)
        return {"how": how, "code": self._process.returncode, "left_behind": left, "seconds": seconds}


def _is_compiler(command: str) -> bool:
    return any(word.rpartition("/")[2] in COMPILERS for word in command.split()[:2])


def _lines(data: bytes) -> list[str]:
    return [line[:LINE_BYTES] for line in data.decode(errors="replace").splitlines()]
