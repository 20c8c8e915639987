"""How long a matrix of twelve tiny cells takes on two engines of this machine, against one cold cell of it."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from builder.build.layers import base_tag
from builder.document import sha256_file
from builder.matrix.engines import connect_to
from builder.settings import settings_from
from tests.docker.second_engine import second_engine
from tests.grid_project import NAME, grid_project
from tests.workshop import make_rootfs

if TYPE_CHECKING:
    from builder.engine import Engine

GOAL = 2.5
FIRST = "unix:///var/run/docker.sock"
RESULT = Path(__file__).parent / "results" / "matrix.json"
PROJECT = Path(__file__).parents[1]


def seconds_of(project: Path, *arguments: str) -> float:
    """Run `envbuild matrix run` as a person does and return its time; anything but all as expected ends this."""
    command = [sys.executable, "-c", "from builder.cli import main; main()", "matrix", "run", *arguments]
    start = time.perf_counter()
    ended = subprocess.run(command, cwd=project, env={**os.environ, "PYTHONPATH": str(PROJECT)}, check=False)
    if ended.returncode != 0:
        sys.exit(f"the run ended with {ended.returncode}")
    return time.perf_counter() - start


def cold(folder: Path, rootfs: Path, engine: Engine, *arguments: str) -> float:
    """Return the time of a run from a store that has wheels and a base, and nothing made of them."""
    with grid_project(folder, rootfs, lambda: engine) as project:
        took = seconds_of(project.root, *arguments)
    for image in engine.local_images():
        for reference in image.references:
            if reference.startswith(f"envbuild/{NAME}:"):
                engine.remove_image(reference)
    engine.remove_image(base_tag(f"sha256:{sha256_file(rootfs)}"))
    return took


def main() -> None:
    """Measure, print the ratio and keep the record."""
    engine = connect_to(FIRST, settings_from({}))
    with tempfile.TemporaryDirectory() as name, second_engine(Path(name) / "engine") as second:
        folder = Path(name)
        rootfs = make_rootfs(folder / "base.tar")
        one = cold(folder / "one", rootfs, engine, "--cell", "2.9.1_1.0_rtx-pro-6000", "--engine", FIRST)
        every = cold(folder / "all", rootfs, engine, "--engine", FIRST, "--engine", second.address)
    ratio = every / one
    record = {
        "name": "matrix",
        "compared": f"12 cells (2 refused, 2 bad, 8 good) on two engines: {every:.1f} s against {one:.1f} s",
        "peer": "envbuild matrix run --cell NAME",
        "peer_version": "the same, one cold cell",
        "ratio": round(ratio, 2),
        "goal": f"at most {GOAL} times one cold cell",
        "met": ratio <= GOAL,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
    }
    RESULT.write_text(json.dumps(record, indent=2) + "\n")
    print(f"{record['compared']}: ratio {record['ratio']} ({record['goal']}: {'met' if record['met'] else 'not met'})")


if __name__ == "__main__":
    main()
