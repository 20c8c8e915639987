"""Inside the image: start the stack's own server, decode through its HTTP interface, end it; the last line reports.

    python3 -m builder.verify.probe.serve FOLDER

FOLDER holds `request.json` and `model/`. The probe does not know the right answers.

    command       the server's command line; "{model}" and "{port}" are put in
    environment   what is added to the environment, and `without`, what is taken away from it
    by_version    {since, before, arguments, environment}: what else the installed release of `package` is given
    port          the port, or null for a free one
    needs_gpu     whether nothing is to be started without a GPU
    phases        [regular expression, phase] pairs: the log line that begins a phase before the server is ready
    rounds        lists of requests {prompt, new_tokens}; those of one round are sent at the same time
    deadlines     seconds: `ready` from the start to the first answer, not counting up to `compiling` seconds in which
                  compilers run; `request` for each later answer, `stop` to end
    ranks         if more than 1: that many processes must first agree on a sum, through `collective`
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.verify.probe.collective import prove_collective
from builder.verify.probe.nvml import Nvml, gpu_facts
from builder.verify.probe.patience import Patience
from builder.verify.probe.report import Report
from builder.verify.probe.sglang_api import Client, NoAnswerError
from builder.verify.probe.stack import model_code, own_options
from builder.verify.probe.supervise import Server
from builder.verify.probe.tensors import compare_tensors, not_loaded

if TYPE_CHECKING:
    from collections.abc import Iterator

ADDRESS = "127.0.0.1"
INFO_TIMEOUT = 5.0
POLL_SECONDS = 0.1
SAMPLE_SECONDS = 0.5
FREE_AGAIN_MIB = 128


class NoGpuError(Exception):
    """The server needs a GPU, and there is none."""


class PortInUseError(Exception):
    """Another program listens where the server should."""


class ServerEndedError(Exception):
    """The server's process ended before it had answered."""


class NotReadyError(Exception):
    """The server did not answer within its deadline."""


class ForeignServerError(Exception):
    """What answers on the port is not the server that was started."""


class StillThereError(Exception):
    """The port or the GPU's memory did not come back after the server's end."""


def main(arguments: list[str]) -> None:
    """Serve, decode, end and report; whatever the server does becomes a report."""
    report = Report()
    report.values |= {"answers": [], "server_info": {}, "ending": None, "log": [], "tensors": None, "times": {}}
    try:
        _prove(Path(arguments[0]), report)
    except Exception as error:
        report.fail(error)
        traceback.print_exc()
    report.close()


def _prove(folder: Path, report: Report) -> None:
    asked = json.loads((folder / "request.json").read_text())
    report.values["gpu"] = gpu_facts()
    report.values |= model_code(asked["package"])
    if asked["needs_gpu"] and not report.values["gpu"]["gpus"]:
        raise NoGpuError("the driver shows no GPU")
    report.values["tensors"] = compare_tensors(folder / "model")
    if asked.get("ranks", 1) > 1:
        report.enter("collective")
        prove_collective(asked["ranks"], asked["collective"], asked["deadlines"]["request"])
    port = _free_port(asked["port"])
    with _running(asked, folder, port, report) as server:
        client = Client(port)
        _await_ready(client, server, asked, str(folder / "model"), report)
        _decode_rounds(client, server, asked, report)
    report.enter("done")


@contextlib.contextmanager
def _running(asked: dict[str, Any], folder: Path, port: int, report: Report) -> Iterator[Server]:
    """Run the server; whatever happens, end all its processes and make sure that port and GPU memory are back."""
    known = {"{model}": str(folder / "model"), "{port}": str(port), "{python}": sys.executable}
    more, added = own_options(asked["package"], asked["by_version"])
    command = [known.get(word, word) for word in (*asked["command"], *more)]
    kept = {name: value for name, value in os.environ.items() if name not in asked["without"]}
    phases = [(re.compile(pattern.encode()), phase) for pattern, phase in asked["phases"]]
    before = _used()
    report.enter("import")
    with tempfile.TemporaryDirectory() as scratch, _peak_memory(report, before):
        given = kept | added | asked["environment"] | {"PYTHONFAULTHANDLER": "1"}
        server = Server(command, given, lambda chunk: _note_phase(chunk, phases, report), cwd=scratch)
        try:
            yield server
        except (NotReadyError, NoAnswerError):
            report.values["compilers"] = server.interrogate()
            raise
        finally:
            ending = server.end(asked["deadlines"]["stop"])
            report.values["log"] = server.log.lines()
            report.values["not_loaded"] = not_loaded(report.values["log"])
            report.values["ending"] = ending | {"log_bytes": server.log.size} | _came_back(port, before, asked)
    if not ending_is_clean(report.values["ending"]):
        raise StillThereError(f"after the server's end: {json.dumps(report.values['ending'])}")


def ending_is_clean(ending: dict[str, Any]) -> bool:
    """Say whether everything that the server had is free again."""
    return bool(ending["port_free"] and ending["gpu_memory_back"])


def _await_ready(client: Client, server: Server, asked: dict[str, Any], model: str, report: Report) -> None:
    """Wait until the server describes itself and has decoded: the health pages prove nothing."""
    start, limits = time.monotonic(), asked["deadlines"]
    patience = Patience(limits["ready"], limits["compiling"], lambda: bool(server.compilers()))
    while (info := client.server_info(INFO_TIMEOUT)) is None:
        _must_live(server)
        if patience.over():
            raise NotReadyError(f"no answer within {_waited(limits['ready'], patience)}")
        time.sleep(POLL_SECONDS)
    _must_live(server)
    report.values["server_info"] = _plain(info)
    if info.get("model_path", model) != model:
        raise ForeignServerError(f"another server answers on the port: it serves {info['model_path']}")
    report.enter("prefill")
    report.values["times"]["ready_seconds"] = round(time.monotonic() - start, 3)
    first = asked["rounds"][0][0]
    backwards = first["prompt"][::-1]  # shares no beginning with what is judged: nothing of it must be cached yet
    with _named_death(server):
        _first_answer(client, backwards, patience, limits["ready"])
        began = time.monotonic()
        client.generate(backwards[1:], 1, limits["request"])
    report.values["times"]["first_token_seconds"] = round(time.monotonic() - began, 4)
    report.values["times"]["compiling_seconds"] = round(patience.compiled, 1)


def _first_answer(client: Client, prompt: list[int], patience: Patience, seconds: float) -> None:
    """Decode two tokens; much is compiled at its first use. Raises NoAnswerError when the patience is over.

    The first token comes from the prefill alone: only the second runs the kernels that decode.
    """
    pool = ThreadPoolExecutor(1)
    try:
        job = pool.submit(client.generate, prompt, 2, max(patience.longest, POLL_SECONDS))
        while not wait([job], timeout=POLL_SECONDS).done:
            if patience.over():
                raise NoAnswerError(f"no first answer within {_waited(seconds, patience)}")
        job.result()
    finally:
        pool.shutdown(wait=False)  # the server's end ends the request


def _waited(seconds: float, patience: Patience) -> str:
    compiled = f" and {patience.compiled:.0f} s of compiling" if patience.compiled else ""
    return f"{seconds:.0f} s{compiled}"


def _decode_rounds(client: Client, server: Server, asked: dict[str, Any], report: Report) -> None:
    report.enter("decode")
    timeout = asked["deadlines"]["request"]
    for number, requests in enumerate(asked["rounds"]):
        began = time.monotonic()
        with _named_death(server), ThreadPoolExecutor(len(requests)) as pool:
            jobs = [pool.submit(client.generate, one["prompt"], one["new_tokens"], timeout) for one in requests]
            report.values["answers"].append([job.result() for job in jobs])
        if number == 0:
            took = time.monotonic() - began - report.values["times"]["first_token_seconds"]
            tokens = sum(one["new_tokens"] for one in requests) - len(requests)
            report.values["times"]["decode_tokens_per_second"] = round(tokens / max(took, 1e-3), 2)
    _must_live(server)


@contextlib.contextmanager
def _named_death(server: Server) -> Iterator[None]:
    """Say that the process has ended where it has: a broken connection says little."""
    try:
        yield
    except NoAnswerError:
        _must_live(server)
        raise
    except OSError:
        deadline = time.monotonic() + INFO_TIMEOUT
        while server.code is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        _must_live(server)
        raise


def _must_live(server: Server) -> None:
    code = server.code
    if code is not None:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise ServerEndedError(f"the server's process ended with {how}")


def _note_phase(chunk: bytes, phases: list[tuple[re.Pattern[bytes], str]], report: Report) -> None:
    """Enter the latest phase that the log speaks of; phases only go forward."""
    order = ["start", "collective", "import", *(phase for _, phase in phases)]
    now = report.values["phase"]
    if now not in order:
        return
    for pattern, phase in phases:
        if order.index(phase) > order.index(report.values["phase"]) and pattern.search(chunk):
            report.enter(phase)


def _free_port(wished: int | None) -> int:
    """Return a port that nobody has; raise PortInUseError if it must be one that somebody has."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, wished or 0))
        except OSError:
            raise PortInUseError(f"port {wished} is in use by another program") from None
        return int(probe.getsockname()[1])


def _plain(info: dict[str, Any]) -> dict[str, Any]:
    """Return the scalar facts that a server says of itself, those of its schedulers included."""
    states = [state for state in info.get("internal_states") or [] if isinstance(state, dict)]
    merged = {**(states[0] if states else {}), **info}
    return {
        name: value for name, value in merged.items() if isinstance(value, str | int | float | bool) or value is None
    }


def _used() -> list[int]:
    nvml = Nvml.opened()
    return nvml.used_mib() if nvml else []


def _came_back(port: int, before: list[int], asked: dict[str, Any]) -> dict[str, bool]:
    """Say whether port and GPU memory are free again; the driver may need a moment."""
    deadline = time.monotonic() + asked["deadlines"]["stop"]
    while True:
        back = all(now <= then + FREE_AGAIN_MIB for now, then in zip(_used(), before, strict=True))
        free = _is_free(port)
        if (back and free) or time.monotonic() > deadline:
            return {"port_free": free, "gpu_memory_back": back}
        time.sleep(POLL_SECONDS)


def _is_free(port: int) -> bool:
    try:
        return _free_port(port) == port
    except PortInUseError:
        return False


@contextlib.contextmanager
def _peak_memory(report: Report, before: list[int]) -> Iterator[None]:
    """Note the most GPU memory that was taken meanwhile, on the fullest GPU, in MiB."""
    nvml = Nvml.opened() if before else None
    done = threading.Event()

    def watch() -> None:
        while nvml is not None and not done.wait(SAMPLE_SECONDS):
            grown = max(now - then for now, then in zip(nvml.used_mib(), before, strict=True))
            report.values["peak_gpu_mib"] = max(grown, report.values.get("peak_gpu_mib", 0))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


if __name__ == "__main__":
    main(sys.argv[1:])
