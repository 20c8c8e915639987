"""A wheel as the files that it becomes in the environment: laid out as an installer would, without unpacking it."""

from __future__ import annotations

import configparser
import csv
import hashlib
import io
import posixpath
import re
import stat
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from installer.exceptions import InstallerError
from installer.records import InvalidRecordEntry, RecordEntry, parse_record_file
from installer.sources import WheelFile
from installer.utils import SCHEME_NAMES, canonicalize_name, fix_shebang, parse_entrypoints, parse_metadata_file
from packaging.metadata import parse_email

from builder.build.hostile import BROKEN, check_members, check_places
from builder.build.tarlayer import File, Member, record_digest
from builder.build.zipmember import DAMAGED_MEMBER
from builder.errors import BuildFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

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
_LISTED = re.compile(rf"(?:{'|'.join(sorted(HASHES))})=[^,]*,\d{{1,20}}")
_REPLACED = ("RECORD", "RECORD.jws", "RECORD.p7s")  # a new RECORD is written, which the old signatures do not sign
# A package's own build backend (PEP 517, `backend-path`) that its wheel carries by mistake: nothing imports it after
# the build, and packages that do so differ in it. The same is left out in compile_installed.py.
BUILD_BACKEND = "build_backend.py"
# A folder whose sources come without byte code: nothing imports packages' tests when a model is served, and Python
# compiles them in memory where something does. The same in compile_installed.py.
TESTS = "/tests/"
_LIBRARY_ERRORS: tuple[type[Exception], ...] = (
    *DAMAGED_MEMBER,
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

    `requires` are the wheel's requirements as its metadata writes them. `left_out` are the files of the wheel that an
    environment does not get, besides byte code and old signatures. `overlaid` are those in whose place lies another
    wheel's file (`owners.py`): RECORD lists them, as an installer leaves it.
    """

    wheel: WheelInput
    files: tuple[File, ...]
    record: str
    requires: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    overlaid: tuple[File, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of the files that the environment gets."""
        return sum(file.size for file in self.files)

    def sources(self, venv: Venv) -> tuple[File, ...]:
        """Return the files that are compiled: those that Python can import, but for packages' tests.

        They are the wheel's alone, overlaid or not: byte code depends on what else is compiled with it.
        """
        inside, every = venv.site_packages + "/", (*self.files, *self.overlaid)
        found = (file for file in every if file.path.startswith(inside) and file.path.endswith(".py"))
        wanted = (file for file in found if TESTS not in file.path.removeprefix(venv.site_packages))
        return tuple(sorted(wanted, key=_by_path))


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
    site = venv.site_packages
    files = (*layout.files, *layout.overlaid)
    rows = [(_relative(file.path, site), record_hash(file), str(file.size)) for file in files]
    rows += [(_relative(path, site), "", "") for path in (*byte_code, layout.record)]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(sorted(rows))
    data = text.getvalue().encode()
    return File(path=layout.record, size=len(data), content=data)


def _first(error: Exception) -> str:
    issues = getattr(error, "issues", None)
    if issues:
        return str(issues[0])
    if isinstance(error, AssertionError):
        return "a script of entry_points.txt is not of the form MODULE:OBJECT"
    return str(error.args[0] if isinstance(error, KeyError) else error) or type(error).__name__


def _lay_out(wheel: WheelInput, archive: zipfile.ZipFile, venv: Venv) -> WheelLayout:
    source = _Source(wheel, archive, venv)
    source.check_record()
    source.check_version()
    files = {file.path: file for file in source.scripts()}
    for file in source.contents():
        if files.setdefault(file.path, file) is not file:
            raise ValueError(f"two files of it want to be {file.path}")
    metadata = f"{venv.site_packages}/{source.dist_info_dir}"
    made_by = File(path=f"{metadata}/INSTALLER", size=len(INSTALLER), content=INSTALLER)
    record = f"{metadata}/RECORD"
    if record in files:
        raise ValueError(f"two files of it want to be {record}")
    ordered = tuple(sorted((files | {made_by.path: made_by}).values(), key=_by_path))
    check_places(wheel.filename, ordered, venv)
    left_out = tuple({BUILD_BACKEND} & source.names)
    return WheelLayout(wheel=wheel, files=ordered, record=record, requires=source.requires(), left_out=left_out)


class _Source(WheelFile):
    """The wheel as `installer` reads it, and where its files go, without opening them."""

    def __init__(self, wheel: WheelInput, archive: zipfile.ZipFile, venv: Venv) -> None:
        archive.filename = wheel.filename  # the store names files by their hash; `installer` wants the wheel's name
        super().__init__(archive)
        self._wheel = wheel
        self._archive = archive
        self._venv = venv
        self.names = frozenset(archive.namelist())

    @cached_property
    def data_dir(self) -> str:
        """Name of the folder with the files of other schemes, however the wheel spells its own name."""
        tops = {name.split("/", 1)[0] for name in self.names}
        own = canonicalize_name(self.distribution)
        found = [top for top in sorted(tops) if top.endswith(".data") and canonicalize_name(top).startswith(f"{own}-")]
        return found[0] if len(found) == 1 else super().data_dir

    def check_record(self) -> None:
        """Refuse a RECORD that does not fit the wheel."""
        with suppress(Exception):  # what cannot be read is met again below
            if self._is_recorded():
                return
        self.validate_record(validate_contents=False)  # slow: it says what is wrong, or nothing if it is only uncommon

    def check_version(self) -> None:
        """Refuse a wheel of a format that is not known."""
        version = parse_metadata_file(self.read_dist_info("WHEEL"))["Wheel-Version"]
        if not (version and version.startswith("1.")):
            raise ValueError(f"its Wheel-Version is {version}, and only 1.x is known")

    def requires(self) -> tuple[str, ...]:
        """Return the requirements as METADATA writes them."""
        metadata = self._archive.read(f"{self.dist_info_dir}/METADATA")
        return tuple(parse_email(metadata)[0].get("requires_dist", ()))

    def scripts(self) -> Iterator[File]:
        """Yield the scripts of the entry points; on Linux one of a window is like any other."""
        if f"{self.dist_info_dir}/entry_points.txt" not in self.names:
            return
        for name, module, call, _ in parse_entrypoints(self.read_dist_info("entry_points.txt")):
            if not name or "/" in name or name in {".", ".."} or not name.isprintable():
                raise ValueError(f"entry_points.txt asks for a script called {name!r}")
            data = ENTRY_POINT.format(
                interpreter=self._venv.interpreter, module=module, name=call.split(".", maxsplit=1)[0], call=call
            ).encode()
            yield File(path=f"{self._folder('scripts')}/{name}", size=len(data), content=data, mode=0o755)

    def contents(self) -> Iterator[File]:
        """Yield each file where it goes, but for RECORD, byte code (compiled anew) and what is left out."""
        site, data = self._venv.site_packages, f"{self.data_dir}/"
        skipped = {BUILD_BACKEND, *(f"{self.dist_info_dir}/{name}" for name in _REPLACED)}
        for info in self._archive.infolist():
            name = info.filename
            if info.is_dir() or name in skipped:
                continue
            listed = self._rows[name][1]
            if listed.partition("=")[0] not in HASHES:
                raise ValueError(f"RECORD has no strong hash of {name}")
            if "/__pycache__/" in f"/{name}":
                continue
            content = Member(archive=self._wheel.path, origin=self._wheel.filename, name=name, hash=listed)
            if f"{name}/".startswith(data):
                yield self._of_scheme(name.removeprefix(data), content, info)
            else:
                yield File(path=f"{site}/{name}", size=info.file_size, content=content, mode=_mode(info))

    def _of_scheme(self, inside: str, content: Member, info: zipfile.ZipInfo) -> File:
        """Return a file of the data folder, which is sorted into folders by install scheme, where it goes."""
        scheme, _, path = inside.partition("/")
        if scheme not in SCHEME_NAMES or not path:
            raise ValueError(f"{info.filename} is not inside the folder of an install scheme")
        target = f"{self._folder(scheme)}/{path}"
        if scheme != "scripts":
            return File(path=target, size=info.file_size, content=content, mode=_mode(info))
        script = self._script(content)
        size = len(script) if isinstance(script, bytes) else info.file_size
        return File(path=target, size=size, content=script, mode=0o755)

    def _script(self, member: Member) -> Member | bytes:
        """Return a script as it is, or with the environment's interpreter in its first line if it says `#!python`."""
        with self._archive.open(member.name) as file:
            if file.read(8) != b"#!python":
                return member
        data = self._archive.read(member.name)
        if not RecordEntry.from_elements("-", member.hash or "", "").validate_stream(io.BytesIO(data)):
            raise ValueError(f"{member.name} is not the file that RECORD lists")
        with fix_shebang(io.BytesIO(data), self._venv.interpreter) as changed:
            return changed.read()

    def _folder(self, scheme: str) -> str:
        return self._venv.scheme(scheme, self.distribution)

    @cached_property
    def _rows(self) -> dict[str, tuple[str, str, str]]:
        return {row[0]: row for row in parse_record_file(self.read_dist_info("RECORD").splitlines())}

    def _is_recorded(self) -> bool:
        """Whether RECORD lists every file in the common way: by hash and size, but itself bare and no signature."""
        record, *signatures = (f"{self.dist_info_dir}/{name}" for name in _REPLACED)
        files = {name for name in self.names if not name.endswith("/")} - {record, *signatures}
        listed = {path for path, *line in self._rows.values() if _LISTED.fullmatch(",".join(line))}
        bare = self._rows.get(record) == (record, "", "") and self._rows.keys().isdisjoint(signatures)
        return bare and files <= listed


def _by_path(file: File) -> bytes:
    return file.path.encode()


def _mode(info: zipfile.ZipInfo) -> Literal[0o644, 0o755]:
    mode = info.external_attr >> 16
    return 0o755 if stat.S_ISREG(mode) and mode & 0o111 else 0o644


def _relative(path: str, site_packages: str) -> str:
    inside = path.removeprefix(f"{site_packages}/")
    return inside if inside != path else posixpath.relpath(path, site_packages)


def record_hash(file: File) -> str:
    """Return the hash of a file as a RECORD spells it."""
    if isinstance(file.content, bytes):
        return f"sha256={record_digest(hashlib.sha256(file.content).digest())}"
    return file.content.hash or ""
