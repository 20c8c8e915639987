"""What is installed in this image: distributions and their bytes, device code of every library, imports that work.

Runs inside the image with its own Python: the standard library and the readers of fat binaries, nothing else. Takes the
path of a JSON request and prints a JSON report as its last line; progress goes to standard error.
"""

from __future__ import annotations

import collections
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.verify.probe.files import Gpu, installed, look_at, split
from builder.verify.probe.imports import try_import

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.verify.probe.files import Distribution, SeenFile


def main(arguments: Sequence[str]) -> None:
    """Print the report on what the request asks for."""
    request = json.loads(Path(arguments[0]).read_bytes())
    own, others = split(installed(), request["locked"])
    seen = read_all(own, Gpu(capability=request["capability"], driver_cuda=request["driver_cuda"]))
    report = {
        "distributions": describe(own, seen),
        "others": [f"{one.name} {one.version}" for one in others],
        "libraries": [file.library for file in seen if file.library is not None],
        "imports": [import_aloud(name, own, request["import_timeout"]) for name in request["stack"]],
    }
    sys.stdout.write("\n" + json.dumps(report) + "\n")


def read_all(distributions: Sequence[Distribution], gpu: Gpu) -> list[SeenFile]:
    """Read all files of these distributions."""
    start = time.monotonic()
    files = [file for one in distributions for file in one.recorded or ()]
    progress(f"reading {len(files)} files of {len(distributions)} distributions")
    seen = look_at(files, gpu)
    progress(f"read {sum(file.size for file in seen) / 1e9:.2f} GB in {time.monotonic() - start:.1f} s")
    return seen


def describe(distributions: Sequence[Distribution], seen: Sequence[SeenFile]) -> list[dict[str, Any]]:
    """Return the distributions with their size and the files that are not as recorded."""
    files = collections.defaultdict(list)
    for file in seen:
        files[file.file.distribution, file.file.folder].append(file)
    return [
        {
            "name": one.name,
            "version": one.version,
            "files": len(files[one.name, one.folder]),
            "bytes": sum(file.size for file in files[one.name, one.folder]),
            "problems": [f"{file.file.name}: {file.problem}" for file in files[one.name, one.folder] if file.problem]
            if one.recorded is not None
            else ["no RECORD: nothing proves its files"],
        }
        for one in distributions
    ]


def import_aloud(name: str, distributions: Sequence[Distribution], timeout: float) -> dict[str, Any]:
    """Import a distribution's modules and say so."""
    progress(f"importing {name}")
    return try_import(name, distributions, timeout)


def progress(text: str) -> None:
    """Say what happens."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
