"""One group of a dry run, in a process of its own: the stack's host code against the pretended GPU that is preloaded.

    python3 -m builder.verify.probe.dry_group FOLDER GROUP ANSWER

Writes to the file ANSWER one JSON line for the canaries and one for each call as it ends: a crash loses none of them.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from builder.verify.probe.drives.run_time import take_not_seen
from builder.verify.probe.triton_driver import PretendedGpu, below_search_path, pretending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.verify.probe.drives.call import Call
    from builder.verify.probe.triton_driver import Recorder

NAME = 120


def main(arguments: Sequence[str]) -> None:
    """Drive a group; the environment is that of `builder.verify.probe.pretence.with_gpu`."""
    folder, wanted, answer = Path(arguments[0]), arguments[1], Path(arguments[2])
    request = json.loads((folder / "request.json").read_bytes())
    group = next(group for group in request["groups"] if group["name"] == wanted)
    gpu = PretendedGpu(**{**request["gpu"], "capability": tuple(request["gpu"]["capability"])})
    with answer.open("a", encoding="utf-8") as out, pretending(gpu) as recorder:
        canary = importlib.import_module("builder.verify.probe.drives.canary")
        say(out, {"canary": canary.look(recorder)})
        drive = importlib.import_module(f"builder.verify.probe.drives.{group['drive']}")
        for call in drive.calls(group):
            say(out, driven(call, recorder))


def driven(call: Call, recorder: Recorder) -> dict[str, Any]:
    """Make one call and return what it launched, and the exception that ended it."""
    sys.stderr.write(f"driving {call.name}\n")
    log, start = Path(os.environ["ENVBUILD_DRY_LOG"]), time.monotonic()
    before = size_of(log)
    recorder.take_touched()
    error, said = None, None
    try:
        said = call.run()
    except Exception as caught:
        error = f"{': '.join(filter(None, (type(caught).__name__, str(caught).strip())))} ({ended_at(caught)})"
    return {
        "call": call.name,
        "decides": call.decides,
        "seconds": round(time.monotonic() - start, 2),
        "error": error,
        "refuses": call.refuses,
        "reaches": call.reaches,
        "said": [*(said if isinstance(said, list) else []), *take_not_seen()],
        "launches": [dataclasses.asdict(launch) for launch in recorder.take_touched()],
        "runtime": once_each(log, before),
    }


def ended_at(error: Exception) -> str:
    """Return where an exception was raised: `package/file.py:line function`."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{below_search_path(frame.filename)}:{frame.lineno} {frame.name}"


def once_each(log: Path, start: int) -> list[dict[str, Any]]:
    """Return what the pretended CUDA runtime logged since a place of its log: each kernel once for each ending."""
    with log.open("rb") as file:
        file.seek(start)
        events = [json.loads(line) for line in file]
    distinct: dict[tuple[Any, ...], dict[str, Any]] = {}
    for event in events:
        kept = distinct.setdefault((event["kernel"], event["event"], event["error"]), {**event, "count": 0})
        kept["count"] += 1
        kept["shared"] = max(kept["shared"], event["shared"])
    return [{**event, "kernel": readable(event["kernel"])} for event in distinct.values()]


def readable(name: str) -> str:
    """Return a C++ symbol as a programmer writes it, without its arguments; the symbol itself if that cannot be."""
    demangle = getattr(ctypes.CDLL("libstdc++.so.6"), "__cxa_demangle")
    demangle.restype = ctypes.c_void_p
    text = demangle(name.encode(), None, None, ctypes.byref(ctypes.c_int()))
    if not text:
        return name[:NAME]
    plain = ctypes.string_at(text).decode().replace("(anonymous namespace)::", "").removeprefix("void ")
    return plain.partition("(")[0][:NAME]


def size_of(log: Path) -> int:
    """Return how long the log is; it begins with the first launch."""
    log.touch()
    return log.stat().st_size


def say(out: TextIO, value: dict[str, Any]) -> None:
    """Write one line of the answer."""
    out.write(json.dumps(value) + "\n")
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
