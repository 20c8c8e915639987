"""Whether each library of the image finds what it links: files, versions and symbols, as the dynamic loader would."""

from __future__ import annotations

import collections
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.elf import MalformedBinaryError
from builder.verify.probe.loader import Library, Loader, closure, library_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from builder.verify.probe.files import RecordedFile

# Libraries of NVIDIA's driver: the container runtime brings them from the GPU's machine. Their functions begin so.
DRIVER = re.compile(r"^lib(cuda|nvidia-[a-z0-9-]+|nvcuvid|cudadebugger|nvoptix)\.so\.[0-9.]+$")
DRIVER_FUNCTIONS = ("cu", "nvml", "NvEnc")
MODULE = "PyInit_"
TORCH_GLOBAL, TORCH_MODULE = "torch/lib/libtorch_global_deps.so", re.compile(r"^torch/_C\.[^/]*so$")
# C++ symbols of PyTorch (c10, at, torch): no other library that is absent could have defined them.
OF_TORCH = re.compile(r"^_ZN?K?.*(3c10|2at|5torch)[0-9A-Z]")
# Functions of PyTorch's C interface (torch/csrc/stable/c/shim.h, torch/csrc/inductor/aoti_torch/c/shim.h): a module may
# call them without linking torch, where its package opens torch for all to see before it (cuda-core does).
TORCH_FUNCTION = re.compile(r"^(aoti_)?torch_")
NUMBER = re.compile(r"[0-9]+")
NAMES_SHOWN = 12


class Process:
    """What is there when a library is loaded: this Python's own libraries and, where there is one, those of torch.

    `names` are the loaded libraries by soname, `everyone` those whose symbols all others see: `import torch` opens
    libtorch_global_deps.so with RTLD_GLOBAL.
    """

    def __init__(self, loader: Loader, files: Sequence[RecordedFile]) -> None:
        self.loader = loader
        program = library_at(Path("/proc/self/exe"))
        self.everyone, _ = closure(loader, [program] if program else [], {})
        self.own = by_soname(self.everyone)
        torch = [file for file in files if file.name == TORCH_GLOBAL or TORCH_MODULE.match(file.name)]
        roots = {file.name: found for file in torch if (found := library_at(file.path)) is not None}
        if TORCH_GLOBAL in roots:
            self.everyone += closure(loader, [roots[TORCH_GLOBAL]], self.own)[0]
        self.names = {**by_soname(closure(loader, roots.values(), self.own)[0]), **self.own}


class Linked:
    """A library with everything that it needs, and what is not there."""

    def __init__(self, file: RecordedFile, library: Library, process: Process) -> None:
        self.file, self.library = file, library
        self.scope, self.missing = closure(process.loader, [library], process.own)
        if self.missing:
            self.scope, self.missing = closure(process.loader, [library], process.names)
        self.driver = {name for name in self.missing if DRIVER.match(name)}
        self.is_module = any(name.startswith(MODULE) for name in library.symbols.defined)

    def absent(self) -> list[str]:
        """Return the needed libraries that are nowhere, but for the driver's."""
        return [name for name in self.missing if name not in self.driver]

    def floors(self, process: Process) -> list[str]:
        """Return the versions that the libraries found do not have: of GLIBC, of GLIBCXX or of any other."""
        names = {**process.names, **by_soname(self.scope)}
        return [
            f"{version} of {file}"
            for file, version in sorted(self.library.symbols.needed_versions)
            if file in names and names[file].symbols.versions and version not in names[file].symbols.versions
        ]

    def undefined(self, process: Process) -> set[str]:
        """Return the symbols that nobody in reach defines. Where a needed library is absent, they may be that one's."""
        left = without(self.library.symbols.undefined, [*process.everyone, *self.scope])
        if self.driver:
            left = {name for name in left if not name.startswith(DRIVER_FUNCTIONS)}
        return left


def look_at_links(files: Sequence[RecordedFile], loader: Loader | None = None) -> dict[str, Any]:
    """Return how many libraries were looked at, what is wrong with which, and the needs that files differ on."""
    process = Process(loader or Loader(), files)
    linked, unreadable = [], []
    for file in files:
        try:
            library = library_at(file.path)
            if library is not None:
                linked.append(Linked(file, library, process))
        except MalformedBinaryError as error:
            unreadable.append(str(error))
    needed = {found.path for one in linked if one.is_module for found in one.scope}
    needed |= {library.path for library in process.names.values()}
    known = collections.defaultdict(list)
    for one in linked:
        known[one.library.soname].append(one.file.name)
    described = [describe(one, linked, needed, known, process) for one in linked]
    problems = [problem for problem in described if problem is not None]
    return {
        "looked_at": len(linked),
        "problems": with_editions(problems, [one.file for one in linked]),
        "copies": differing_copies(linked),
        "unreadable": unreadable,
    }


def describe(
    one: Linked, all_of_them: Sequence[Linked], needed: set[Path], known: dict[str, list[str]], process: Process
) -> dict[str, Any] | None:
    """Return what is wrong with a library; None: nothing.

    A library that the image holds elsewhere is `preloaded`: Python code may open it first. So is a library of torch
    whose C functions one calls that does not link it.
    """
    absent = found_by_users(one, one.absent(), all_of_them)
    preloaded = [name for name in absent if name in known]
    missing = [name for name in absent if name not in known]
    undefined = resolved_by_users(one, one.undefined(process), all_of_them)
    if absent:
        undefined = {name for name in undefined if OF_TORCH.match(name)}
    links_torch = any(name.startswith(("libtorch", "libc10")) for name in one.library.linkage.needed)
    if not links_torch:
        opened = {name: owner for name in undefined if (owner := owner_in_torch(name, process)) is not None}
        undefined -= opened.keys()
        preloaded += sorted(set(opened.values()) - set(preloaded))
    floors = one.floors(process)
    if not (missing or floors or undefined or preloaded):
        return None
    return {
        "distribution": one.file.distribution,
        "path": one.file.name,
        "role": "module" if one.is_module else "needed" if one.library.path in needed else "other",
        "missing": missing,
        "preloaded": preloaded,
        "versions": floors,
        "undefined": sorted(undefined)[:NAMES_SHOWN],
        "undefined_count": len(undefined),
        "links_torch": links_torch,
    }


def owner_in_torch(name: str, process: Process) -> str | None:
    """Return which library that torch loads defines this function of torch's C interface."""
    if not TORCH_FUNCTION.match(name):
        return None
    return next((soname for soname, library in process.names.items() if name in library.symbols.defined), None)


def found_by_users(one: Linked, absent: list[str], all_of_them: Sequence[Linked]) -> list[str]:
    """Return what is absent even where another library needs this one: the loader then searches the other's RPATH."""
    if not absent or one.is_module:
        return absent
    users = [user for user in all_of_them if user is not one and one.library in user.scope]
    return min(([name for name in absent if name in user.missing] for user in users), key=len, default=absent)


def with_editions(problems: Sequence[dict[str, Any]], files: Sequence[RecordedFile]) -> list[dict[str, Any]]:
    """Add to each problem how many other editions of the library there are, and how many of them find everything.

    Packages carry one library for several versions of Python, torch or FFmpeg, whose names differ in numbers only.
    """

    def group(distribution: str, path: str) -> tuple[str, str]:
        return distribution, NUMBER.sub("#", path)

    every = collections.Counter(group(file.distribution, file.name) for file in files)
    wrong = collections.Counter(group(problem["distribution"], problem["path"]) for problem in problems)
    return [
        {**problem, "editions": every[place] - 1, "whole_editions": every[place] - wrong[place]}
        for problem in problems
        for place in [group(problem["distribution"], problem["path"])]
    ]


def resolved_by_users(one: Linked, left: set[str], all_of_them: Sequence[Linked]) -> set[str]:
    """Return what is still undefined in the best case: a library may take symbols from the one that needs it."""
    if not left or one.is_module:
        return left
    users = [user for user in all_of_them if user is not one and one.library in user.scope]
    return min((without(left, user.scope) for user in users), key=len, default=left)


def without(names: Iterable[str], libraries: Iterable[Library]) -> set[str]:
    """Return the names that none of the libraries defines."""
    left = set(names)
    for library in libraries:
        if not left:
            break
        left = {name for name in left if name not in library.symbols.defined}
    return left


def differing_copies(linked: Sequence[Linked]) -> list[dict[str, Any]]:
    """Return the sonames under which the modules of the image reach files of different bytes: the first loaded wins."""
    reached: dict[str, set[Path]] = collections.defaultdict(set)
    for one in linked:
        for library in one.scope[1:] if one.is_module else ():
            reached[library.soname].add(library.path)
    copies = []
    for soname, paths in sorted(reached.items()):
        digests = {digest_of(path): str(path) for path in sorted(paths)} if len(paths) > 1 else {}
        if len(digests) > 1:
            copies.append({"soname": soname, "paths": sorted(digests.values())})
    return copies


def digest_of(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def by_soname(libraries: Iterable[Library]) -> dict[str, Library]:
    """Return libraries by the name that the loader knows them by, and by that of their file."""
    found: dict[str, Library] = {}
    for library in libraries:
        found.setdefault(library.soname, library)
        found.setdefault(library.path.name, library)
    return found
