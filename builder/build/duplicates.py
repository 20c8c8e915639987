"""Shared libraries that an image holds more than once, by the name that the loader knows them by (their soname)."""

from __future__ import annotations

import posixpath
import re
import shutil
import tarfile
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.build.tarlayer import Member
from builder.elf import MalformedBinaryError, linkage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from builder.build.wheelfile import WheelLayout
    from builder.store import Store

BASE = "the Debian base"
_LIBRARY = re.compile(r"^(?P<stem>.+?)\.so(\.[0-9]+)*$")
# auditwheel gives the libraries that it bundles a name with a hash, in the file and in the soname.
_BUNDLED = re.compile(r"-[0-9a-f]{8}(?=\.so)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """One copy of a library: who brings it, its path in the image, its bytes."""

    owner: str
    path: str
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Duplicate:
    """A library with several copies in one image, the largest first."""

    soname: str
    copies: tuple[Copy, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Candidate:
    """A library that shares its file name's stem with another one; `archive` holds it as `member`."""

    copy: Copy
    archive: Path
    member: str


def find_duplicates(layouts: Iterable[WheelLayout], rootfs: Path | None, store: Store) -> tuple[Duplicate, ...]:
    """Return the libraries that are in the wheels or in the base's tar more than once, the largest first.

    Only files whose names are alike are read. A file that is no library, or has no soname, counts for nothing.
    """
    by_stem: dict[str, list[_Candidate]] = {}
    for candidate in (*_in_wheels(layouts), *(_in_base(rootfs) if rootfs else ())):
        by_stem.setdefault(_stem(candidate.copy.path), []).append(candidate)
    by_soname: dict[str, list[Copy]] = {}
    for candidates in by_stem.values():
        for candidate in candidates if len(candidates) > 1 else ():
            soname = _soname(candidate, store)
            if soname is not None:
                by_soname.setdefault(_BUNDLED.sub("", soname), []).append(candidate.copy)
    found = [
        Duplicate(soname=soname, copies=tuple(sorted(copies, key=lambda copy: (-copy.size, copy.path))))
        for soname, copies in by_soname.items()
        if len(copies) > 1
    ]
    return tuple(sorted(found, key=lambda each: (-sum(copy.size for copy in each.copies), each.soname)))


def _in_wheels(layouts: Iterable[WheelLayout]) -> Iterator[_Candidate]:
    for layout in layouts:
        for file in layout.files:
            if isinstance(file.content, Member) and _stem(file.path):
                copy = Copy(owner=layout.wheel.name, path=file.path, size=file.size)
                yield _Candidate(copy=copy, archive=file.content.archive, member=file.content.name)


def _in_base(rootfs: Path) -> Iterator[_Candidate]:
    with tarfile.open(rootfs) as archive:
        for member in archive:
            if member.isreg() and _stem(member.name):
                path = "/" + member.name.removeprefix("./")
                yield _Candidate(copy=Copy(owner=BASE, path=path, size=member.size), archive=rootfs, member=member.name)


def _stem(path: str) -> str:
    match = _LIBRARY.match(_BUNDLED.sub("", posixpath.basename(path)))
    return match["stem"] if match else ""


def _soname(candidate: _Candidate, store: Store) -> str | None:
    with store.scratch() as folder:
        library = folder / "library"
        with library.open("wb") as out:
            if zipfile.is_zipfile(candidate.archive):
                with zipfile.ZipFile(candidate.archive) as wheel, wheel.open(candidate.member) as member:
                    shutil.copyfileobj(member, out)
            else:
                with tarfile.open(candidate.archive) as tar:
                    extracted = tar.extractfile(candidate.member)
                    if extracted is not None:
                        shutil.copyfileobj(extracted, out)
        try:
            return linkage(library).soname
        except MalformedBinaryError:
            return None
