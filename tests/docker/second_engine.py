"""A second Docker engine on this machine, started by the tests in namespaces of its own, ended by its pid."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.errors import EngineError
from builder.matrix.engines import connect_to
from builder.settings import settings_from

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 60.0
ALONE = 'mount -t tmpfs none /run/containerd 2>/dev/null; exec "$@"'  # dockerd would take the system's containerd
HELPERS = {"containerd", "containerd-shim", "containerd-shim-runc-v2", "runc"}


@dataclass
class SecondEngine:
    """An engine that may be killed: its address, its process, its folder."""

    address: str
    process: subprocess.Popen[bytes]
    folder: Path

    def kill(self) -> None:
        """End the engine at once, as a machine that loses its power, and all that it had started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pid in _own_pids(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _own_pids(folder: Path) -> list[int]:
    """Return the engine's own helpers: containerd and the shims of containers whose arguments name its folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            program, *arguments = path.read_bytes().decode(errors="replace").split("\0")
            if Path(program).name in HELPERS and any(str(folder) in argument for argument in arguments):
                found.append(int(path.parent.name))
    return found


@contextlib.contextmanager
def second_engine(
    folder: Path, *, programs: Path | None = None, options: tuple[str, ...] = ()
) -> Iterator[SecondEngine]:
    """Run an engine that has no network and shares nothing with the first one but the kernel.

    `programs` is a folder with another version of it, `options` are dockerd's.
    """
    path = os.pathsep.join([*([str(programs)] if programs else []), os.environ["PATH"]])
    if os.geteuid() != 0 or shutil.which("dockerd", path=path) is None or shutil.which("unshare") is None:
        pytest.skip("a second engine needs root, dockerd and unshare")
    folder.mkdir(parents=True)
    address = f"unix://{folder}/docker.sock"
    command = [
        *("unshare", "-n", "-m", "sh", "-c", ALONE, "sh"),
        *("dockerd", "--host", address, "--bridge=none", "--iptables=false", *options),
        *("--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, env={**os.environ, "PATH": path}
        )
    engine = SecondEngine(address=address, process=process, folder=folder)
    try:
        _wait_for(engine)
        yield engine
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
        engine.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(engine: SecondEngine) -> None:
    end = time.monotonic() + SECONDS
    while True:
        try:
            connect_to(engine.address, settings_from({})).facts()
        except EngineError:
            if engine.process.poll() is not None or time.monotonic() > end:
                pytest.fail((engine.folder / "log").read_text(), pytrace=False)
            time.sleep(0.1)
        else:
            return
