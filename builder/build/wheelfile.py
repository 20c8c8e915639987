"""A wheel as the files that it becomes in the environment: laid out as an installer would, without unpacking it."""

from __future__ import annotations

import configparser
import csv
import hashlib
import io
import posixpath
import stat
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import installer
from installer.destinations import WheelDestination
from installer.exceptions import InstallerError
from installer.records import InvalidRecordEntry, RecordEntry, parse_record_file
from installer.sources import WheelFile
from installer.utils import canonicalize_name, fix_shebang

from builder.build.hostile import BROKEN, check_members, check_places
from builder.build.tarlayer import File, Member, record_digest
from builder.errors import BuildFailedError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from installer.scripts import ScriptSection
    from installer.sources import WheelContentElement
    from installer.utils import Scheme

    from builder.build.venv import Venv

INSTALLER = b"envbuild\n"
# What pip writes since 26.0 (`PipScriptMaker`), so that the rendered Dockerfile and the layers hold the same scripts.
ENTRY_POINT = """\
#!{interpreter}
import sys
from {module} import {name}
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit({call}())
"""
HASHES = frozenset({"sha256", "sha384", "sha512"})
_REPLACED = ("RECORD", "RECORD.jws", "RECORD.p7s")  # a new RECORD is written, which the old signatures do not sign
# A package's own build backend (PEP 517, `backend-path`) that its wheel carries by mistake: nothing imports it after
# the build, and packages that do so differ in it. The same is left out in compile_installed.py.
BUILD_BACKEND = "build_backend.py"
# A folder whose sources come without byte code: nothing imports packages' tests when a model is served, and Python
# compiles them in memory where something does. The same in compile_installed.py.
TESTS = "/tests/"
_LIBRARY_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,  # zipfile: a compression that it does not know
    InstallerError,
    InvalidRecordEntry,
    csv.Error,
    configparser.Error,
    ValueError,
    KeyError,  # zipfile: no such member
    AssertionError,  # installer: an entry point that it does not understand
)


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelInput:
    """A wheel file of this machine: `filename` is its real name, `path` where the bytes lie."""

    name: str
    version: str
    filename: str
    sha256: str
    path: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelLayout:
    """The files that a wheel becomes, sorted by path; its RECORD, which also lists byte code, is made at the end.

    `left_out` are the files of the wheel that an environment does not get, besides byte code and old signatures.
    """

    wheel: WheelInput
    files: tuple[File, ...]
    record: str
    left_out: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)

    def sources(self, venv: Venv) -> tuple[File, ...]:
        """Return the files that come with byte code: those that Python can import, but for packages' tests."""
        inside = venv.site_packages + "/"
        found = (file for file in self.files if file.path.startswith(inside) and file.path.endswith(".py"))
        return tuple(file for file in found if TESTS not in file.path.removeprefix(venv.site_packages))


def read_layout(wheel: WheelInput, venv: Venv) -> WheelLayout:
    """Return where the files of a wheel go; reads the wheel's index and metadata, not its contents.

    Raises BuildFailedError if the wheel is not valid, or if it tries to leave its place.
    """
    try:
        with zipfile.ZipFile(wheel.path) as archive:
            check_members(wheel.filename, archive.infolist())
            return _lay_out(wheel, archive, venv)
    except _LIBRARY_ERRORS as error:
        raise BuildFailedError(f"{wheel.filename} is not a valid wheel: {_first(error)}", remedy=BROKEN) from error


def record_of(layout: WheelLayout, venv: Venv, byte_code: Iterable[str]) -> File:
    """Return the RECORD of an installed wheel; byte code is listed without hash, as pip does."""
    rows = [(_relative(file.path, venv), record_hash(file), str(file.size)) for file in layout.files]
    rows += [(_relative(path, venv), "", "") for path in (*byte_code, layout.record)]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(sorted(rows))
    data = text.getvalue().encode()
    return File(path=layout.record, size=len(data), content=data)


def _first(error: Exception) -> str:
    issues = getattr(error, "issues", None)
    return str(issues[0]) if issues else str(error) or type(error).__name__


def _lay_out(wheel: WheelInput, archive: zipfile.ZipFile, venv: Venv) -> WheelLayout:
    source = _Source(wheel, archive)
    source.validate_record(validate_contents=False)
    destination = _Destination(source, venv)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # byte code in a wheel: left out, and compiled anew
        installer.install(source, destination, {"INSTALLER": INSTALLER})
    files = tuple(sorted(destination.files.values(), key=lambda file: file.path.encode()))
    check_places(wheel.filename, files, venv)
    left_out = tuple({BUILD_BACKEND} & set(archive.namelist()))
    return WheelLayout(wheel=wheel, files=files, record=destination.record, left_out=left_out)


class _Unread(io.BytesIO):
    """Stands for the bytes of a wheel's file, which are read when the layer is written."""

    def __init__(self, member: Member, size: int) -> None:
        super().__init__()
        self.member = member
        self.size = size


class _Source(WheelFile):
    """The wheel as `installer` reads it, without opening its files."""

    def __init__(self, wheel: WheelInput, archive: zipfile.ZipFile) -> None:
        archive.filename = wheel.filename  # the store names files by their hash; `installer` wants the wheel's name
        super().__init__(archive)
        self.archive = archive
        self.path = wheel.path
        self.name = wheel.filename

    @cached_property
    def data_dir(self) -> str:
        """Name of the folder with the files of other schemes, however the wheel spells its own name."""
        tops = {info.filename.split("/", 1)[0] for info in self.archive.infolist()}
        own = canonicalize_name(self.distribution)
        found = [top for top in sorted(tops) if top.endswith(".data") and canonicalize_name(top).startswith(f"{own}-")]
        return found[0] if len(found) == 1 else super().data_dir

    def get_contents(self) -> Iterator[WheelContentElement]:
        """Yield each file with its RECORD line, without its bytes, but for RECORD and what is left out."""
        skipped = {BUILD_BACKEND, *(f"{self.dist_info_dir}/{name}" for name in _REPLACED)}
        rows = {row[0]: row for row in parse_record_file(self.read_dist_info("RECORD").splitlines())}
        for info in self.archive.infolist():
            if info.is_dir() or info.filename in skipped:
                continue
            row = rows[info.filename]
            if row[1].partition("=")[0] not in HASHES:
                raise ValueError(f"RECORD has no strong hash of {info.filename}")
            mode = info.external_attr >> 16
            executable = stat.S_ISREG(mode) and bool(mode & 0o111)
            place = Member(archive=self.path, origin=self.name, name=info.filename, hash=row[1])
            yield row, _Unread(place, info.file_size), executable


class _Destination(WheelDestination):
    """Notes where `installer` puts each file."""

    def __init__(self, source: _Source, venv: Venv) -> None:
        self.files: dict[str, File] = {}
        self.record = ""
        self._source = source
        self._venv = venv

    def write_script(
        self,
        name: str,
        module: str,
        attr: str,
        section: ScriptSection,  # noqa: ARG002 - `installer` gives it
    ) -> RecordEntry:
        """Note the script of an entry point; on Linux one of a window is like any other."""
        if not name or "/" in name or name in {".", ".."} or not name.isprintable():
            raise ValueError(f"entry_points.txt asks for a script called {name!r}")
        data = ENTRY_POINT.format(
            interpreter=self._venv.interpreter, module=module, name=attr.split(".", maxsplit=1)[0], call=attr
        ).encode()
        return self._place("scripts", name, data, len(data), executable=True)

    def write_file(
        self,
        scheme: Scheme,
        path: str | os.PathLike[str],
        stream: BinaryIO,
        is_executable: bool,  # noqa: FBT001 - `installer` calls it so
    ) -> RecordEntry:
        """Note a file of the wheel, or one that `installer` adds."""
        if not isinstance(stream, _Unread):
            data = stream.read()
            return self._place(scheme, str(path), data, len(data), executable=False)
        if scheme != "scripts":
            return self._place(scheme, str(path), stream.member, stream.size, executable=is_executable)
        content = self._script(stream)
        size = len(content) if isinstance(content, bytes) else stream.size
        return self._place(scheme, str(path), content, size, executable=True)

    def finalize_installation(
        self,
        scheme: Scheme,
        record_file_path: str,
        records: Iterable[tuple[Scheme, RecordEntry]],  # noqa: ARG002 - `installer` gives it
    ) -> None:
        """Note where the RECORD goes."""
        self.record = self._resolve(scheme, record_file_path)
        if self.record in self.files:
            raise ValueError(f"two files of it want to be {self.record}")

    def _script(self, stream: _Unread) -> Member | bytes:
        """Return a script as it is, or with the environment's interpreter in its first line if it says `#!python`."""
        with self._source.archive.open(stream.member.name) as file:
            if file.read(8) != b"#!python":
                return stream.member
        data = self._source.archive.read(stream.member.name)
        if not RecordEntry.from_elements("-", stream.member.hash or "", "").validate_stream(io.BytesIO(data)):
            raise ValueError(f"{stream.member.name} is not the file that RECORD lists")
        with fix_shebang(io.BytesIO(data), self._venv.interpreter) as changed:
            return changed.read()

    def _place(self, scheme: str, path: str, content: Member | bytes, size: int, *, executable: bool) -> RecordEntry:
        target = self._resolve(scheme, path)
        generated = isinstance(content, bytes)
        if target in self.files and not generated:
            raise ValueError(f"two files of it want to be {target}")
        self.files[target] = File(path=target, size=size, content=content, mode=0o755 if executable else 0o644)
        return RecordEntry(path, None, size)

    def _resolve(self, scheme: str, path: str) -> str:
        return posixpath.join(self._venv.scheme(scheme, self._source.distribution), path)


def _relative(path: str, venv: Venv) -> str:
    return posixpath.relpath(path, venv.site_packages)


def record_hash(file: File) -> str:
    """Return the hash of a file as a RECORD spells it."""
    if isinstance(file.content, bytes):
        return f"sha256={record_digest(hashlib.sha256(file.content).digest())}"
    return file.content.hash or ""
