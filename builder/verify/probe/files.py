"""The installed distributions of this Python, and every file that their RECORDs name: its bytes and its device code."""

from __future__ import annotations

import base64
import collections
import csv
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import posixpath
import re
import stat
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from builder.elf import MalformedBinaryError, is_elf
from builder.fatbin import DeviceCode, bare_code, device_code, runs_on
from builder.verify.probe.traps import Traps, find_traps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from io import BufferedReader

BARE = (".cubin", ".ptx")
NAME_SHOWN = 120
HASHES = ("sha256=", "sha384=", "sha512=")  # as in wheelfile.py


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """The target's compute capability, such as `12.0`, and the CUDA version of its driver, if the recipe says it."""

    capability: str
    driver_cuda: str | None = None


class RecordedFile(NamedTuple):
    """One line of a RECORD: a path below `folder`, its hash as RECORD writes it (`sha256=…`) and its size, if any."""

    distribution: str
    folder: Path
    name: str
    hash: str | None
    size: str = ""

    @property
    def path(self) -> Path:
        """Where the file should be."""
        return self.folder / self.name


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """An installed distribution, its name in normal form. `recorded` is None if it has no RECORD.

    `digest` is the sha256 of that RECORD, `requires` are its requirements as its metadata writes them.
    """

    name: str
    version: str
    folder: Path
    recorded: tuple[RecordedFile, ...] | None
    digest: str = ""
    requires: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SeenFile:
    """What was seen of a recorded file: its size in bytes, what is wrong with it, and its device code.

    `is_bare`: the file is itself a cubin or PTX, no library that holds some. `recalled`: all but its size was seen when
    another image with the same layer was looked at. `changed`: its bytes are not those recorded; `owners` are the
    distributions that recorded these bytes in its place: the rest is said of the file with theirs.
    """

    file: RecordedFile
    size: int = 0
    problem: str | None = None
    library: dict[str, Any] | None = None
    is_elf: bool = False
    is_bare: bool = False
    recalled: bool = False
    changed: bool = False
    owners: tuple[str, ...] = ()


def installed() -> list[Distribution]:
    """Return all distributions that this Python finds, in the order in which it searches them."""
    found = {}
    for metadata in importlib.metadata.distributions():
        folder = Path(str(metadata.locate_file("")))
        name, version = normal(metadata.metadata["Name"]), metadata.version
        # Not `metadata.files`: from Python 3.12 on it leaves out files that are missing.
        record = metadata.read_text("RECORD")
        files = None if record is None else tuple(read_record(record, name, folder))
        found[name, version, folder] = Distribution(
            name=name,
            version=version,
            folder=folder,
            recorded=files,
            digest=hashlib.sha256((record or "").encode()).hexdigest(),
            requires=tuple(metadata.requires or ()),
        )
    return list(found.values())


def normal(name: str) -> str:
    """Return a distribution's name in normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_record(text: str, distribution: str, folder: Path) -> Iterable[RecordedFile]:
    """Yield the files of a RECORD; hashes other than those of HASHES are no proof and count as none."""
    for row in csv.reader(text.splitlines()):
        if row:
            name, written, size = [*row, "", ""][:3]
            yield RecordedFile(distribution, folder, name, written if written.startswith(HASHES) else None, size)


def split(found: Sequence[Distribution], locked: Sequence[str]) -> tuple[list[Distribution], list[Distribution]]:
    """Part the distributions in the folders of the locked ones from the others, those of the base; each by name.

    Of two distributions of one name, Python imports the one in the folder that it searches first.
    """
    first = {one.name: one for one in reversed(found)}
    folders = {first[name].folder for name in locked if name in first}
    ordered = sorted(found, key=lambda one: (one.name, one.version))
    return [one for one in ordered if one.folder in folders], [one for one in ordered if one.folder not in folders]


def look_at(files: Sequence[RecordedFile], gpu: Gpu) -> list[SeenFile]:
    """Read every file once, the large ones first, on all processors; the answers are in the order given."""
    order = sorted(range(len(files)), key=lambda index: -(size_of(files[index].path) or 0))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        answers = dict(zip(order, pool.map(lambda index: look_at_file(files[index], gpu), order), strict=True))
    return [answers[index] for index in range(len(files))]


def facts_of(one: Distribution, seen: Sequence[SeenFile]) -> str | None:
    """Return what `recall` needs of a distribution's files, a function of their bytes alone.

    None where a file is not as recorded, or where cubins could not be unpacked with the libraries of this image. It is
    packed: a report has room for some megabytes, and there are packages with thousands of cubins.
    """
    unsure = any(file.problem or (file.library and file.library.get("unread")) for file in seen)
    if one.recorded is None or unsure:
        return None
    told = {file.file.name: [file.is_elf, file.is_bare, file.library] for file in seen if file.is_elf or file.library}
    text = json.dumps({"record": one.digest, "files": told})
    return base64.b64encode(zlib.compress(text.encode())).decode()


def recall(one: Distribution, packed: str | None) -> list[SeenFile] | None:
    """Return the files of a distribution as facts tell of them, without reading any.

    None if these are facts of another RECORD or cannot be read, or if a file is missing or has another size than its
    RECORD says.
    """
    if one.recorded is None or packed is None:
        return None
    told = _unpack(packed, one.digest)
    if told is None:
        return None
    seen = []
    for file in one.recorded:
        size = size_of(file.path)
        if size is None or file.size not in {"", str(size)}:
            return None
        is_elf, is_bare, library = told.get(file.name, (False, False, None))
        seen.append(SeenFile(file=file, size=size, library=library, is_elf=is_elf, is_bare=is_bare, recalled=True))
    return seen


def _unpack(packed: str, digest: str) -> dict[str, tuple[bool, bool, dict[str, Any] | None]] | None:
    """Return by file what `facts_of` packed of the RECORD with this digest; None of another, or of anything else."""
    try:
        facts = json.loads(zlib.decompress(base64.b64decode(packed)))
        told = {name: (is_elf, is_bare, library) for name, (is_elf, is_bare, library) in facts["files"].items()}
        return told if facts["record"] == digest else None
    except (ValueError, TypeError, KeyError, AttributeError, zlib.error):
        return None


def size_of(path: Path) -> int | None:
    """Return a file's size in bytes, None if it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def look_at_file(file: RecordedFile, gpu: Gpu) -> SeenFile:
    """Compare a file with its RECORD and read its device code."""
    size = size_of(file.path)
    if size is None:
        return SeenFile(file=file, problem="missing")
    with file.path.open("rb") as opened:
        elf = is_elf(opened.read(6))
        opened.seek(0)
        changed = file.hash is not None and hash_of(opened, file.hash) != file.hash
    problem = "not the bytes that its wheel recorded" if changed else None
    bare = describe(file, bare_code, gpu) if file.name.endswith(BARE) else None
    library = describe(file, device_code, gpu) if elf and bare is None else bare
    return SeenFile(
        file=file,
        size=size,
        problem=problem,
        library=library,
        is_elf=elf,
        is_bare=bare is not None,
        changed=changed,
    )


def with_owners(by_distribution: Sequence[Sequence[SeenFile]]) -> list[list[SeenFile]]:
    """Name, for each file with other bytes than those recorded, the distributions that recorded these in its place."""
    changed = {place_of(seen.file) for files in by_distribution for seen in files if seen.changed}
    owners = collections.defaultdict(list)
    for file in (seen.file for files in by_distribution if changed for seen in files):
        if place_of(file) in changed and is_as_recorded(file):
            owners[place_of(file)].append(file.distribution)
    return [[_owned(seen, owners) for seen in files] for files in by_distribution]


def place_of(file: RecordedFile) -> str:
    """Return the path of a file without the `..` in it, which lead from site-packages to scripts."""
    return posixpath.normpath(f"{file.folder}/{file.name}")


def _owned(seen: SeenFile, owners: Mapping[str, Sequence[str]]) -> SeenFile:
    found = owners.get(place_of(seen.file)) if seen.changed else None
    return SeenFile(file=seen.file, problem=seen.problem, changed=True, owners=tuple(found)) if found else seen


def is_as_recorded(file: RecordedFile) -> bool:
    """Say whether a file that is there has the bytes of which its RECORD has a hash."""
    with file.path.open("rb") as opened:
        return file.hash is not None and hash_of(opened, file.hash) == file.hash


def hash_of(file: BufferedReader, written: str) -> str:
    """Return the hash of a file as RECORD writes it, by the method of the written one."""
    method = written.partition("=")[0]
    digest = hashlib.file_digest(file, method).digest()
    return f"{method}={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def describe(
    file: RecordedFile, read: Callable[[Path], Sequence[DeviceCode] | DeviceCode | None], gpu: Gpu
) -> dict[str, Any] | None:
    """Return a file's architectures with their counts and how the target runs them; None: it has no device code."""
    known = {"distribution": file.distribution, "path": file.name}
    try:
        found = read(file.path)
        codes = (found,) if isinstance(found, DeviceCode) else found
    except MalformedBinaryError as error:
        return {**known, "codes": {}, "usable": None, "error": str(error)}
    if codes is None:
        return None
    counts = collections.Counter(code.label for code in codes)
    usable = runs_on(codes, gpu.capability, gpu.driver_cuda)
    # NVIDIA's own libraries choose their kernels themselves, by the GPU.
    looked_into = usable == "sass" and not file.distribution.startswith("nvidia-") and read is device_code
    traps = find_traps(file.path, gpu.capability) if looked_into else Traps(kernels=0, trapping=(), unread=0)
    return {
        **known,
        "codes": dict(sorted(counts.items())),
        "usable": usable,
        "error": None,
        "kernels": traps.kernels,
        "trapping": len(traps.trapping),
        "trapping_first": traps.trapping[0][:NAME_SHOWN] if traps.trapping else "",
        "unread": traps.unread,
    }
