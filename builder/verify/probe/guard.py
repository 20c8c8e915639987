"""Between a probe and the server that it starts: when the probe is gone, however it went, so is all of the server.

    python3 -m builder.verify.probe.guard COMMAND...

Standard input is a pipe from the probe; its end is the probe's end. The guard ends as the command ended.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time

from builder.verify.probe.processes import become_reaper, kill_below

_LOOK_EVERY = 0.2
_DUMPABLE = 4  # PR_SET_DUMPABLE, linux/prctl.h: a server that dies by a signal leaves no second core dump here


def main(command: list[str]) -> None:
    """Run the command; end with it, or end it with the probe."""
    become_reaper()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_listen_again)  # noqa: PLW1509 - one thread
    while process.poll() is None:
        if select.select([0], [], [], _LOOK_EVERY)[0] and not os.read(0, 1):
            while kill_below(os.getpid()):
                process.poll()
                time.sleep(_LOOK_EVERY / 10)
            os._exit(1)
    _end_as(process.returncode)


def _listen_again() -> None:
    """Give the server the signals that the guard does not hear; runs between fork and exec."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_as(code: int) -> None:
    """End with the same exit code or by the same signal; orphans go to the probe."""
    if code < 0:
        ctypes.CDLL(None).prctl(_DUMPABLE, 0, 0, 0, 0)
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
