"""What the static probe reports of an image, as frozen values, and how its findings become a check's text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from builder.document import Document

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_EVIDENCE = 40


class SeenDistribution(Document):
    """An installed distribution: its size, each file that is not as its wheel recorded it, and what it requires.

    `recalled` are the files that were not read, because they were in another image with the same layer. `overlaid` are,
    by path, the distributions that recorded the bytes that lie in the place of a file that has others.
    """

    name: str
    version: str
    files: int
    bytes: int
    problems: tuple[str, ...]
    overlaid: dict[str, tuple[str, ...]] = {}
    recalled: int = 0
    requires: tuple[str, ...] = ()


class SeenLibrary(Document):
    """A library with device code: how many entries for each architecture, and how the target runs them.

    Of its `kernels` for the target, `trapping` only trap, the first by name is `trapping_first`; `unread` cubins could
    not be unpacked. Libraries of NVIDIA are not looked into, and have no kernels here.
    """

    distribution: str
    path: str
    codes: dict[str, int]
    usable: Literal["sass", "ptx"] | None
    error: str | None
    kernels: int = 0
    trapping: int = 0
    trapping_first: str = ""
    unread: int = 0


class LinkProblem(Document):
    """What a library links and does not find.

    `role`: a Python module, a library that a module or torch needs, or another, which is opened by name if at all.
    `missing` are libraries that are nowhere, `preloaded` those that the image has where the loader does not search,
    `versions` such as `GLIBC_2.38 of libc.so.6`, `undefined` the first of all symbols that nobody defines. `editions`
    are the libraries of the distribution whose paths differ from this one's in numbers only, `whole_editions` those of
    them that find everything.
    """

    distribution: str
    path: str
    role: Literal["module", "needed", "other"]
    missing: tuple[str, ...]
    preloaded: tuple[str, ...]
    versions: tuple[str, ...]
    undefined: tuple[str, ...]
    undefined_count: int
    links_torch: bool
    editions: int = 0
    whole_editions: int = 0


class DifferingCopies(Document):
    """A name under which modules of the image reach files of different bytes."""

    soname: str
    paths: tuple[str, ...]


class SeenLinks(Document):
    """What the libraries of the image link: how many were looked at, and what is wrong."""

    looked_at: int
    problems: tuple[LinkProblem, ...]
    copies: tuple[DifferingCopies, ...]
    unreadable: tuple[str, ...]


class SeenOptions(Document):
    """What the server's own parser says of the recipe's options; `error`: it could not be asked."""

    engine: str
    unknown: tuple[str, ...]
    refused: tuple[str, ...]
    known: tuple[str, ...]
    error: str | None
    tail: tuple[str, ...]


class SeenImport(Document):
    """The import of a distribution's modules, without a GPU or on a pretended one.

    `failed` is the module that could not be imported. `server`: the modules are those of the server's processes.
    """

    distribution: str
    on: Literal["cpu", "gpu"] = "cpu"
    server: bool = False
    modules: tuple[str, ...]
    seconds: float
    failed: str | None
    error: str | None
    tail: tuple[str, ...]


class StaticReport(Document):
    """What the probe saw. `others` are distributions outside the folders of the locked ones.

    `bare` are the cubins and PTX files of each distribution, `markers` the image's Python (PEP 508). `facts` are what
    the probe wants to be told when it sees a distribution in the same layer again, None if a file is not as recorded.
    """

    distributions: tuple[SeenDistribution, ...]
    others: tuple[str, ...]
    libraries: tuple[SeenLibrary, ...]
    bare: tuple[SeenLibrary, ...]
    links: SeenLinks
    markers: dict[str, str]
    imports: tuple[SeenImport, ...]
    serve: SeenOptions | None
    facts: dict[str, str | None]


def first_of(problems: Sequence[str]) -> str:
    """Return the first problem and how many more there are; empty if there is none."""
    if not problems:
        return ""
    return problems[0] + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")


def shortened(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines of an evidence, the last of them only counted if they are too many."""
    left = len(lines) - MOST_EVIDENCE
    return (*lines[:MOST_EVIDENCE], *([f"… and {left} more"] if left > 0 else []))
