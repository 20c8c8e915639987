"""How long a matrix of twelve cells takes on two engines of this machine, against one cold cell of it.

Two are refused, two bad, eight good. `tiny` are stacks of a few files; `quickstart` is the recipe of that name with six
versions of Transformers for two GPUs, which needs root, a network, room on the disks (`ROOM`; it says what is missing
before it begins) and some 20 minutes. Each side begins with an empty store; uv's cache, and what the machine's own
engine has, serve both alike. With --kill the second engine dies in the middle: nothing is measured, all verdicts must
be there.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byte_code import write_byte_code

from builder.build.layers import base_tag
from builder.document import sha256_file
from builder.matrix.engines import connect_to
from builder.settings import settings_from
from tests.docker.second_engine import SecondEngine, second_engine
from tests.grid_project import NAME, grid_project
from tests.workshop import make_rootfs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

GOAL = 2.5
FIRST = "unix:///var/run/docker.sock"
RESULTS = Path(__file__).parent / "results"
PROJECT = Path(__file__).parents[1]
QUICKSTART = "benchmark-quickstart"
MATRIX = f"""\
version: 1
name: quickstarts
recipe: recipes/{QUICKSTART}.yaml
axes:
  transformers: ["5.24.0", "5.23.0", "5.22.0", "5.21.0", "5.8.1", "5.1.0"]
  target: [rtx-pro-6000, h200]
expect:
  - cells: {{transformers: "5.8.1"}}
    result: bad
    reason: this Transformers rotates GLM-5's positions half-split
"""
CELLS = {"tiny": "2.9.1_1.0_rtx-pro-6000", "quickstart": "5.24.0_rtx-pro-6000"}
ROOM = {"tiny": (2, 1), "quickstart": (24, 12)}  # GB below --folder (store, second engine), and of the first engine
STATES = {"refused": 2, "bad": 2, "good": 8}


def expect_room(needed: Mapping[Path, int]) -> None:
    """Say how much room the disks of these folders have and how much is needed, in GB; end this where it is too little.

    Folders on one disk need their room together.
    """
    disks: dict[int, dict[Path, int]] = {}
    for folder, room in needed.items():
        disks.setdefault(folder.stat().st_dev, {})[folder] = room
    for folders in disks.values():
        free, wanted = shutil.disk_usage(next(iter(folders))).free / 1e9, sum(folders.values())
        text = f"{' and '.join(map(str, folders))}: {free:.0f} GB are free, {wanted} GB are needed"
        if free < wanted:
            sys.exit(f"{text}; give --folder a place on another disk, or make room (`docker system df`, `envbuild gc`)")
        print(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Took:
    """The seconds of a run, and those that this machine's cores were busy meanwhile, whoever kept them so."""

    seconds: float
    busy: float


def envbuild(project: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start envbuild in a project as a person does."""
    command = [sys.executable, "-c", "from builder.cli import main; main()", *arguments]
    return subprocess.Popen(command, cwd=project)


def timed(project: Path, *arguments: str, dies: SecondEngine | None = None) -> Took:
    """Run `envbuild matrix run`; anything but all as expected ends this. `dies` is killed in the middle."""
    start, busy = time.perf_counter(), busy_seconds()
    process = envbuild(project, "matrix", "run", *arguments)
    while dies is not None and process.poll() is None:
        time.sleep(0.1)
        if any(cell.get("place") == dies.address for cell in cells_so_far()):
            dies.kill()
            dies = None
    if process.wait() != 0 or dies is not None:
        sys.exit(f"the run ended with {process.returncode}")
    return Took(seconds=time.perf_counter() - start, busy=busy_seconds() - busy)


def busy_seconds() -> float:
    """Return how many seconds the cores of this machine have worked since it began: proc(5), the first line of stat."""
    user, nice, system = Path("/proc/stat").read_text(encoding="ascii").split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def cells_so_far() -> list[dict[str, Any]]:
    """Return the cells of the report that the store has."""
    reports = Path(os.environ["ENVBUILD_STORE"]).glob("matrices/*/report.json")
    return [cell for path in reports for cell in json.loads(path.read_bytes())["cells"]]


def expect_all() -> None:
    """End this unless every cell of the report has its verdict."""
    states = [cell["state"] for cell in cells_so_far()]
    counts = {state: states.count(state) for state in states}
    if counts != STATES:
        sys.exit(f"the cells ended as {counts}, not as {STATES}")


@contextlib.contextmanager
def tiny(folder: Path) -> Iterator[Path]:
    """Make the project of tiny stacks in a folder; its store has wheels and a base, and nothing made of them."""
    engine = connect_to(FIRST, settings_from({}))
    folder.mkdir()
    rootfs = make_rootfs(folder / "base.tar")
    try:
        with grid_project(folder, rootfs, lambda: engine) as project:
            yield project.root
    finally:
        forget(NAME)
        engine.remove_image(base_tag(f"sha256:{sha256_file(rootfs)}"))


@contextlib.contextmanager
def quickstart(folder: Path) -> Iterator[Path]:
    """Make the project of the quickstart in a folder, locked, with an empty store that is removed at the end."""
    project = folder / "project"
    text = (PROJECT / "recipes" / "quickstart.yaml").read_text(encoding="utf-8")
    shutil.copytree(PROJECT / "recipes" / "quickstart", project / "recipes" / "quickstart")
    (project / "matrix.yaml").write_text(MATRIX, encoding="utf-8")
    recipe = project / "recipes" / f"{QUICKSTART}.yaml"
    recipe.write_text(text.replace("name: quickstart\n", f"name: {QUICKSTART}\n"), encoding="utf-8")
    os.environ["ENVBUILD_STORE"] = str(folder / "locking")
    if envbuild(project, "lock", str(recipe)).wait() != 0:
        sys.exit("the recipe could not be locked")
    os.environ["ENVBUILD_STORE"] = str(folder / "store")
    try:
        yield project
    finally:
        shutil.rmtree(folder)
        forget(QUICKSTART)


KINDS = {"tiny": tiny, "quickstart": quickstart}


def forget(name: str) -> None:
    """Remove the images of a recipe from the machine's own engine."""
    engine = connect_to(FIRST, settings_from({}))
    for image in engine.local_images():
        for reference in image.references:
            if reference.startswith(f"envbuild/{name}:"):
                engine.remove_image(reference)


def measure(kind: str, folder: Path) -> dict[str, Any]:
    """Measure one cold cell on the machine's own engine, then all of them on it and an empty one; return the record."""
    with KINDS[kind](folder / "one") as project:
        one = timed(project, "--cell", CELLS[kind], "--engine", FIRST)
    every = on_two_engines(kind, folder)
    ratio = every.seconds / one.seconds
    return {
        "name": f"matrix: {kind}",
        "compared": f"12 cells (2 refused, 2 bad, 8 good) on two engines: {every.seconds:.1f} s against "
        f"{one.seconds:.1f} s (the cores worked {every.busy:.0f} s against {one.busy:.0f} s); empty stores, one engine "
        "empty, the other as the machine has it, as uv's cache is",
        "peer": "envbuild matrix run --cell NAME",
        "peer_version": "the same, one cold cell",
        "ratio": round(ratio, 2),
        "goal": f"at most {GOAL} times one cold cell",
        "met": ratio <= GOAL,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[2]:.0f}, "
        f"Python {platform.python_version()}",
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
    }


def on_two_engines(kind: str, folder: Path, *, kill: bool = False) -> Took:
    """Run all cells from an empty store on the machine's own engine and an empty one, which `kill` lets die."""
    with second_engine(folder / "engine") as second, KINDS[kind](folder / "all") as project:
        engines = ("--engine", FIRST, "--engine", second.address)
        took = timed(project, *engines, dies=second if kill else None)
        expect_all()
    return took


def main() -> None:
    """Measure, print the ratio and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted(KINDS), help="what the cells are")
    parser.add_argument("--folder", type=Path, help="where stores and the second engine's data are (default: /tmp)")
    parser.add_argument("--kill", action="store_true", help="kill the second engine in the middle, measure nothing")
    arguments = parser.parse_args()
    below, own = ROOM[arguments.kind]
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        expect_room({Path(name): below, Path(connect_to(FIRST, settings_from({})).facts().root): own})
        write_byte_code(Path(name))
        if arguments.kill:
            took = on_two_engines(arguments.kind, Path(name), kill=True)
            print(f"one of two engines was killed: all verdicts arrived, after {took.seconds:.0f} s")
            return
        record = measure(arguments.kind, Path(name))
    (RESULTS / f"matrix-{arguments.kind}.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"{record['compared']}: ratio {record['ratio']} ({record['goal']}: {'met' if record['met'] else 'not met'})")


if __name__ == "__main__":
    main()
