"""How long a diagnosis takes on a log of 100 MB, against `grep -F -c` with as many patterns on the same file."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from builder.diagnose import diagnose_files
from builder.diagnose.knowledge import built_in

if TYPE_CHECKING:
    from collections.abc import Callable

GOAL = 5.0
FAILURE = "[2026-03-20 10:00:00 TP3] RuntimeError: probability tensor contains either `inf`, `nan` or element < 0\n"
RESULT = Path(__file__).parent / "results" / "diagnose.json"


def write_log(path: Path, megabytes: int) -> None:
    """Write a log of interleaved ranks with changing figures and one failure near its end."""
    chance = random.Random(1)
    ordinary = (
        (resources.files("builder.diagnose") / "knowledge" / "ordinary.txt")
        .read_text("utf-8")
        .splitlines(keepends=True)
    )
    with path.open("w") as file:
        size = 0
        while size < megabytes * 1_000_000:
            line = chance.choice(ordinary).replace("1", str(chance.randrange(10_000)), 1)
            size += file.write(line)
        file.write(FAILURE)


def best_of(times: int, work: Callable[[], object]) -> float:
    """Return the shortest time of several runs in seconds."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def grep(patterns: Path, log: Path) -> None:
    """Count the lines that hold any of the patterns (grep ends with 1 where there is none)."""
    command = ["grep", "-F", "-c", "-f", str(patterns), str(log)]
    subprocess.run(command, check=False, capture_output=True, env={**os.environ, "LC_ALL": "C"})


def measure(megabytes: int, runs: int) -> dict[str, object]:
    """Run both on the same file and return the record."""
    with tempfile.TemporaryDirectory() as folder:
        log, patterns = Path(folder) / "server.log", Path(folder) / "patterns"
        write_log(log, megabytes)
        literals = [pattern.literals[0].decode().strip("\n") for pattern in built_in().patterns.values()]
        patterns.write_text("".join(f"{literal}\n" for literal in literals))
        found = diagnose_files([log])
        if [cause.kind for cause in found.causes[:1]] != ["non-finite-logits"]:
            sys.exit(f"the failure at the end of the log was not found: {found.reported.to_plain()}")
        own = best_of(runs, lambda: diagnose_files([log]))
        peer = best_of(runs, lambda: grep(patterns, log))
    version = subprocess.run(["grep", "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]
    ratio = own / peer
    return {
        "name": "diagnose",
        "compared": f"a log of {megabytes} MB, {len(literals)} patterns: {own:.2f} s against {peer:.2f} s",
        "peer": "grep -F -c -f PATTERNS",
        "peer_version": version,
        "ratio": round(ratio, 2),
        "goal": f"at most {GOAL} times the time of grep",
        "met": ratio <= GOAL,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
    }


def main() -> None:
    """Measure, print the ratio and keep the record."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--megabytes", type=int, default=100)
    arguments.add_argument("--runs", type=int, default=3)
    given = arguments.parse_args()
    record = measure(given.megabytes, given.runs)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(record, indent=2) + "\n")
    print(f"{record['compared']}: ratio {record['ratio']} ({record['goal']}: {'met' if record['met'] else 'not met'})")


if __name__ == "__main__":
    main()
