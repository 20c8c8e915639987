"""How long `envbuild check` takes as a process, against a bare Python that only imports pydantic and yaml."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from byte_code import write_byte_code

from builder.preflight.examine import preflight
from builder.recipe.source import read_recipe

GOAL = 0.3  # seconds
RULES_GOAL = 0.02  # seconds
PROJECT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "check.json"
BARE = "import yaml; from pydantic import BaseModel"
OWN = "from builder.cli import main; main()"


def seconds_of(program: str, *arguments: str) -> float:
    """Run a program in a Python of its own and return its seconds."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def rules_seconds(recipe: Path, runs: int) -> float:
    """Return the seconds that all rules take on a recipe once they are read."""
    source, seconds = read_recipe(recipe), []
    for _ in range(runs + 1):
        start = time.perf_counter()
        preflight(source.recipe)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def main() -> None:
    """Measure both by turns, print the figures and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", type=Path, default=PROJECT / "recipes" / "sm120-glm5.yaml")
    parser.add_argument("--runs", type=int, default=15)
    given = parser.parse_args()
    mine, peer = [], []
    with tempfile.TemporaryDirectory() as name:
        write_byte_code(Path(name))
        for _ in range(given.runs + 1):  # the first writes what is missing of it
            peer.append(seconds_of(BARE))
            mine.append(seconds_of(OWN, "check", str(given.recipe.resolve())))
    own, bare, rules = min(mine[1:]), min(peer[1:]), rules_seconds(given.recipe, given.runs)
    record = {
        "name": "check",
        "compared": f"{given.recipe.stem}: {own:.3f} s ({1000 * rules:.1f} ms of it rules) against {bare:.3f} s",
        "peer": f'python -c "{BARE}"',
        "peer_version": f"pydantic {version('pydantic')}, pyyaml {version('pyyaml')}",
        "ratio": round(own / bare, 2),
        "goal": f"at most {GOAL} s as a process, the rules at most {1000 * RULES_GOAL:.0f} ms",
        "met": own <= GOAL and rules <= RULES_GOAL,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }
    RESULT.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(f"{record['compared']}: ratio {record['ratio']}\n")


if __name__ == "__main__":
    main()
