"""A process for each cell that begins warm: forked from a server that has all imports behind it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

from builder.console import Console
from builder.document import pretty_json
from builder.errors import EngineError, EnvbuildError
from builder.matrix.cellreport import CellReport
from builder.matrix.cellrun import compile_cell, failed_report, report_without_run, run_cell
from builder.matrix.engines import connect_to
from builder.store import Store
from builder.tools import Tools

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerProcess
    from pathlib import Path
    from types import FrameType

    from builder.matrix.cells import Cell
    from builder.settings import Settings

_CONTEXT = multiprocessing.get_context("forkserver")
_ENGINE_FAILED = b"\0"  # before the words of an engine that failed; a report begins with a brace


class CellProcesses:
    """The processes of the cells that run now, in any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[ForkServerProcess] = set()
        _CONTEXT.set_forkserver_preload([__name__, "builder.dockerd.client"])

    def run(
        self,
        cell: Cell,
        folder: Path,
        settings: Settings,
        *,
        engine: str,
        on_line: Callable[[str], None],
        verbose: bool,
        only_wheels: bool = False,
    ) -> CellReport:
        """Run a cell, or compile for it (`only_wheels`); `on_line` sees what it says. Raise EngineError if that failed.

        A process that ends without a report (the kernel ended it for its memory) makes the cell unverified.
        """
        answer, inner_answer = _CONTEXT.Pipe(duplex=False)
        words, inner_words = _CONTEXT.Pipe(duplex=False)
        call = (cell, folder, settings, engine, verbose, only_wheels)
        here = (dict(os.environ), os.getcwd())  # noqa: PTH109 - as text, for the other process
        process = _CONTEXT.Process(target=_work, args=(inner_answer, inner_words, call, here))
        with self._lock, inner_answer, inner_words:
            process.start()
            self._running.add(process)
        try:
            _hear(words, on_line)
            with answer, contextlib.suppress(EOFError):
                return _report_in(answer.recv_bytes(), cell)
        finally:
            process.join()
            code = process.exitcode
            with self._lock:
                self._running.discard(process)
            process.close()
        return failed_report(cell, EnvbuildError(f"the process of the cell ended with {code}"), place=engine)

    def ask_to_end(self) -> None:
        """Ask all of them to end, so that they remove their containers."""
        with self._lock:
            for process in self._running:
                process.terminate()


def _hear(words: Connection, on_line: Callable[[str], None]) -> None:
    with words, os.fdopen(os.dup(words.fileno()), "rb") as lines:
        for line in lines:
            on_line(line.decode(errors="replace").rstrip())


def _report_in(answer: bytes, cell: Cell) -> CellReport:
    if answer.startswith(_ENGINE_FAILED):
        raise EngineError(answer.removeprefix(_ENGINE_FAILED).decode())
    return CellReport.from_json(answer, source=cell.name)


def _work(
    answer: Connection,
    words: Connection,
    call: tuple[Cell, Path, Settings, str, bool, bool],
    here: tuple[Mapping[str, str], str],
) -> None:
    """Be the process of a cell, with the environment and the folder of the one that asked for it."""
    cell, folder, settings, engine, verbose, only_wheels = call
    environment, place = here
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(place)
    os.dup2(words.fileno(), sys.stderr.fileno())
    words.close()
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
        signal.signal(signal.SIGHUP, _hang_up)
    console = Console(verbose=verbose)
    tools = Tools(
        settings=settings,
        store=Store(settings.store, console.say),
        console=console,
        connect=lambda: connect_to(engine, settings),
    )
    with contextlib.suppress(KeyboardInterrupt):
        answer.send_bytes(_answer(cell, folder, tools, engine, only_wheels=only_wheels))


def _answer(cell: Cell, folder: Path, tools: Tools, engine: str, *, only_wheels: bool) -> bytes:
    try:
        if only_wheels:
            compile_cell(cell, folder, tools)
            report = report_without_run(cell)
        else:
            report = run_cell(cell, folder, tools, place=engine)
    except EngineError as error:
        return _ENGINE_FAILED + error.message.encode()
    except EnvbuildError as error:
        tools.console.error(error)
        report = failed_report(cell, error, place=engine)
    return pretty_json(report.to_plain())


def _hang_up(_signal: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGHUP, lambda *_: None)  # it comes twice from a shell that ends
    raise KeyboardInterrupt


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
