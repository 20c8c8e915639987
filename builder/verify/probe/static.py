"""What is installed in this image: distributions and their bytes, device code of every library, imports that work.

Runs inside the image with its own Python: the standard library and the readers of fat binaries, nothing else. Takes the
path of a JSON request and prints a JSON report as its last line; progress goes to standard error.
"""

from __future__ import annotations

import collections
import itertools
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.verify.probe.files import Gpu, facts_of, installed, look_at, recall, split, with_owners
from builder.verify.probe.imports import import_server, try_import
from builder.verify.probe.linking import look_at_links
from builder.verify.probe.options import parse_options
from builder.verify.probe.pretence import with_driver, with_gpu

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.verify.probe.files import Distribution, SeenFile


def main(arguments: Sequence[str]) -> None:
    """Print the report on what the request asks for."""
    folder = Path(arguments[0])
    request = json.loads((folder / "request.json").read_bytes())
    players = folder / request["pretended"] if request["pretended"] else None
    own, others = split(installed(), request["locked"])
    gpu = Gpu(capability=request["capability"], driver_cuda=request["driver_cuda"])
    by_distribution = read_all(own, gpu, request["known"])
    seen = [file for files in by_distribution for file in files]
    report = {
        "distributions": [describe(one, files) for one, files in zip(own, by_distribution, strict=True)],
        "facts": {one.name: facts_of(one, files) for one, files in zip(own, by_distribution, strict=True)},
        "others": [f"{one.name} {one.version}" for one in others],
        "libraries": [file.library for file in seen if file.library is not None and not file.is_bare],
        "bare": gather_bare(seen),
        "links": links_aloud(seen),
        "markers": markers(),
        "imports": [
            *(seen for name in request["stack"] for seen in import_aloud(name, own, request, players)),
            *server_aloud(request, players),
        ],
        "serve": serve_aloud(request, players),
    }
    sys.stdout.write("\n" + json.dumps(report) + "\n")


def read_all(distributions: Sequence[Distribution], gpu: Gpu, known: Mapping[str, str]) -> list[list[SeenFile]]:
    """Read the files of each of these distributions, but for those that facts are `known` of, by distribution."""
    start = time.monotonic()
    recalled = [recall(one, known.get(one.name)) for one in distributions]
    unread = [one.recorded or () for one, files in zip(distributions, recalled, strict=True) if files is None]
    files = [file for recorded in unread for file in recorded]
    progress(
        f"reading {len(files)} files of {len(unread)} distributions; of {len(recalled) - len(unread)} all is known"
    )
    answers = iter(look_at(files, gpu))
    seen = [
        list(itertools.islice(answers, len(one.recorded or ()))) if files is None else files
        for one, files in zip(distributions, recalled, strict=True)
    ]
    read = sum(file.size for files in seen for file in files if not file.recalled)
    progress(f"read {read / 1e9:.2f} GB in {time.monotonic() - start:.1f} s")
    return with_owners(seen)


def describe(one: Distribution, seen: Sequence[SeenFile]) -> dict[str, Any]:
    """Return a distribution with its size and the files that are not as recorded, those of others by themselves."""
    return {
        "name": one.name,
        "version": one.version,
        "requires": list(one.requires),
        "files": len(seen),
        "recalled": sum(file.recalled for file in seen),
        "bytes": sum(file.size for file in seen),
        "overlaid": {file.file.name: file.owners for file in seen if file.owners},
        "problems": [f"{file.file.name}: {file.problem}" for file in seen if file.problem and not file.owners]
        if one.recorded is not None
        else ["no RECORD: nothing proves its files"],
    }


def gather_bare(seen: Sequence[SeenFile]) -> list[dict[str, Any]]:
    """Return the cubins and PTX files as one library for each distribution: packages hold thousands of them."""
    by_distribution = collections.defaultdict(list)
    for file in seen:
        if file.is_bare and file.library is not None:
            by_distribution[file.file.distribution].append(file.library)
    return [together(name, libraries) for name, libraries in sorted(by_distribution.items())]


def together(distribution: str, libraries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what one distribution's cubins and PTX files carry, all in all."""
    codes: collections.Counter[str] = collections.Counter()
    for library in libraries:
        codes.update(library["codes"])
    usable = {library["usable"] for library in libraries}
    return {
        "distribution": distribution,
        "path": f"{libraries[0]['path'].split('/')[0]}/ ({len(libraries)} cubins and PTX files)",
        "codes": dict(sorted(codes.items())),
        "usable": next((kind for kind in ("sass", "ptx") if kind in usable), None),
        "error": next((library["error"] for library in libraries if library["error"] is not None), None),
    }


def links_aloud(seen: Sequence[SeenFile]) -> dict[str, Any]:
    """Look at what all libraries link and say so."""
    start = time.monotonic()
    links = look_at_links([file.file for file in seen if file.is_elf])
    progress(f"looked at what {links['looked_at']} libraries link in {time.monotonic() - start:.1f} s")
    return links


def markers() -> dict[str, str]:
    """Return this Python as environment markers know it (PEP 508)."""
    version = sys.implementation.version
    return {
        "implementation_name": sys.implementation.name,
        "implementation_version": ".".join(map(str, version[:3])),
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "sys_platform": sys.platform,
    }


def import_aloud(
    name: str, distributions: Sequence[Distribution], request: dict[str, Any], players: Path | None
) -> list[dict[str, Any]]:
    """Import a distribution's modules without a GPU and, where one is played, with it; say so."""
    timeout = request["import_timeout"]
    progress(f"importing {name}")
    if players is None:
        return [try_import(name, distributions, timeout)]
    progress(f"importing {name} on a pretended GPU")
    return [
        try_import(name, distributions, timeout, variables=with_driver(str(players))),
        try_import(name, distributions, timeout, on="gpu", variables=with_gpu(str(players), request["gpu"])),
    ]


def server_aloud(request: dict[str, Any], players: Path | None) -> list[dict[str, Any]]:
    """Import the server's own modules on the pretended GPU, with the recipe's variables, and say so."""
    serve = request["serve"]
    if serve is None or players is None:
        return []
    progress(f"importing what {serve['engine']}'s server imports on a pretended GPU")
    variables = {**serve["env"], **with_gpu(str(players), request["gpu"])}
    return [import_server(serve["engine"], request["import_timeout"], variables)]


def serve_aloud(request: dict[str, Any], players: Path | None) -> dict[str, Any] | None:
    """Hold the server's options against the parser of the installed version and say so; None: nothing to serve."""
    if request["serve"] is None:
        return None
    progress(f"asking {request['serve']['engine']} for its options")
    variables = with_gpu(str(players), request["gpu"]) if players else {}
    return parse_options(request["serve"], request["import_timeout"], variables)


def progress(text: str) -> None:
    """Say what happens."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
