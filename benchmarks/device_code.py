"""How long the fat binaries of some libraries take to be read, against NVIDIA's cuobjdump over the same files.

    python benchmarks/device_code.py --cuobjdump PATH LIBRARY...

cuobjdump is in the package nvidia-cuda-cuobjdump (nvidia/cu13/bin). The libraries may be any that carry device code.
The record is of libtorch_cuda.so of torch 2.11.0 and of four libraries of sgl-kernel 0.3.21 and sglang-kernel 0.4.4.
"""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

from builder.fatbin import device_code

GOAL = 1 / 5
RESULT = Path(__file__).parent / "results" / "device_code.json"
LISTED = re.compile(r"\.(sm_[0-9]+a?)\.(?:elfbin|cubin)|\.(sm_[0-9]+[af]?)\.ptx")


def listed(cuobjdump: Path, library: Path) -> tuple[collections.Counter[str], float]:
    """Return how many entries cuobjdump lists for each architecture, and the seconds that it took."""
    start, found = time.perf_counter(), collections.Counter[str]()
    for kind, option in (("sm", "--list-elf"), ("compute", "--list-ptx")):
        out = subprocess.run([cuobjdump, option, library], capture_output=True, text=True, check=False).stdout
        names = [one or other for one, other in LISTED.findall(out)]
        found.update(f"{kind}_{name.removeprefix('sm_').rstrip('f')}" for name in names)
    return found, time.perf_counter() - start


def read(library: Path) -> tuple[collections.Counter[str], float]:
    """Return the same of envbuild's reader; the suffix `f`, which cuobjdump does not print, is left out."""
    start = time.perf_counter()
    codes = device_code(library) or ()
    seconds = time.perf_counter() - start
    return collections.Counter(code.label.rstrip("f") for code in codes), seconds


def measure(cuobjdump: Path, libraries: list[Path]) -> dict[str, object]:
    """Read all libraries both ways and return the record."""
    own = peer = 0.0
    differing = []
    for library in libraries:
        seen, seconds = read(library)
        own += seconds
        expected, seconds = listed(cuobjdump, library)
        peer += seconds
        if seen != expected:
            differing.append(f"{library.name}: {seen - expected} more, {expected - seen} fewer")
        print(f"{library.name}: {sum(seen.values())} entries", *differing[-1:] if seen != expected else ())
    size = sum(library.stat().st_size for library in libraries) / 1e6
    version = subprocess.run([cuobjdump, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    same = f"{len(libraries) - len(differing)} of {len(libraries)} with the same counts"
    return {
        "name": "device_code",
        "compared": f"{len(libraries)} libraries, {size:.0f} MB, {same}: {own:.2f} s against {peer:.1f} s",
        "peer": "cuobjdump --list-elf, --list-ptx",
        "peer_version": version,
        "ratio": round(own / peer, 4),
        "goal": "at most 1/5 of the time of cuobjdump",
        "met": own / peer <= GOAL,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
    }


def main() -> None:
    """Measure and keep the record."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--cuobjdump", type=Path, required=True)
    arguments.add_argument("libraries", nargs="+", type=Path)
    given = arguments.parse_args()
    if not given.cuobjdump.is_file():
        sys.exit(f"no such program: {given.cuobjdump}")
    record = measure(given.cuobjdump, given.libraries)
    RESULT.write_text(json.dumps(record, indent=2) + "\n")
    print(record["compared"])


if __name__ == "__main__":
    main()
