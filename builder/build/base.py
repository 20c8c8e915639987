"""DebianLock -> root filesystem: bootstrapped from the locked .debs without network, with the same bytes everywhere."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.document import key_of
from builder.errors import BuildFailedError
from builder.process import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from builder.lock.model import DebianLock, Lock, LockedDeb
    from builder.store import Store

_PLAIN = re.compile(r"[A-Za-z0-9/._+@-]+")
LAYOUT = 1  # raise when the same .debs shall become another file tree

# Documentation and translations do not run; licences stay, as Debian's policy (12.5) asks of whoever distributes.
SLIM = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/lintian/*",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",
)

# What bootstrapping leaves of this machine, of the mirror and of the moment. mmdebstrap copies the host's name and
# resolver; the owner of apt's `partial` folders depends on whether apt's sandbox user could read the temporary folder.
# mmdebstrap itself empties /tmp, /run and the machine id afterwards. Its own apt cleanup is skipped (`cleanup/apt`): it
# would run apt once more, against folders that are gone by then. Nothing in here may touch /tmp, where apt's
# configuration lies: an apt without it works on the host.
CLEANING = r"""
set -eu
cd "$1"
rm -f etc/hostname etc/resolv.conf etc/*- etc/.pwd.lock
rm -f etc/apt/sources.list
rm -rf etc/apt/sources.list.d/* var/cache/apt/* var/lib/apt/lists/*
rm -f var/lib/dpkg/*-old var/lib/dpkg/lock* var/lib/dpkg/triggers/Lock var/cache/debconf/*-old
find var/log -type f -delete
: > etc/machine-id
"""

# Nothing of the caller's environment reaches a maintainer script: PYTHON* and the locale change what some write.
_ENVIRONMENT = (
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/nonexistent",
    "LC_ALL=C.UTF-8",
    "TZ=UTC",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RootFilesystem:
    """An uncompressed tar in the store: the base layer of an image. `size` is in bytes."""

    sha256: str
    size: int


def base_key(debian: DebianLock) -> str:
    """Return the key of a bootstrap: every input that can change the bytes of its result."""
    return key_of(
        {
            "layout": LAYOUT,
            "architecture": debian.architecture,
            "debs": sorted(deb.sha256 for deb in debian.base),
            "epoch": debian.epoch,
            "slim": SLIM,
            "cleaning": CLEANING,
            "environment": _ENVIRONMENT,
        }
    )


def base_identity(lock: Lock) -> str:
    """Return the key of a lock's base: of its bootstrap, or of the image that it is."""
    if lock.file.debian is not None:
        return base_key(lock.file.debian)
    return key_of({"image": lock.file.base.digest if lock.file.base else None})


def bootstrap_base(debian: DebianLock, store: Store, on_line: Callable[[str], None] | None = None) -> RootFilesystem:
    """Make the root filesystem of a lock, or find it in the store; every .deb must be in the store already.

    Works as root, and for others where user namespaces are allowed. Raises BuildFailedError with mmdebstrap's lines.
    """
    key = base_key(debian)
    with store.exclusive(f"base-{key}"):
        kept = find_base(debian, store)
        if kept is not None:
            return kept
        made = _bootstrap(debian, store, on_line)
        store.keep_result("base", key, {"sha256": made.sha256, "size": made.size})
        return made


def find_base(debian: DebianLock, store: Store) -> RootFilesystem | None:
    """Return the root filesystem of a lock if it was made before."""
    kept = store.result("base", base_key(debian))
    if kept is None or not store.has(kept["sha256"]):
        return None
    return RootFilesystem(sha256=kept["sha256"], size=kept["size"])


def debs_folder(packages: Iterable[LockedDeb], store: Store, destination: Path) -> tuple[Path, ...]:
    """Put .debs into a folder under their own names, as hard links where the disk allows; return them in order."""
    destination.mkdir(parents=True, exist_ok=True)
    return tuple(_put(deb, store, destination) for deb in packages)


def deb_filename(deb: LockedDeb) -> str:
    """Return `name_version_arch.deb`; the version's epoch is written `%3a`, as in apt's own cache."""
    return f"{deb.name}_{deb.version.replace(':', '%3a')}_{deb.architecture}.deb"


def bootstrap_command(debian: DebianLock, *, mode: str, repository: Path, output: Path) -> tuple[str, ...]:
    """Return the command that makes `output` (a tar) from a flat repository, in a clean environment."""
    return (
        "env",
        "-i",
        *_ENVIRONMENT,
        f"SOURCE_DATE_EPOCH={debian.epoch}",
        f"TMPDIR={repository.parent}",
        "mmdebstrap",
        f"--mode={mode}",
        "--format=tar",
        "--variant=minbase",
        f"--architectures={debian.architecture}",
        f"--include={','.join(deb.name for deb in debian.base)}",
        *(f"--dpkgopt={line}" for line in SLIM),
        "--skip=cleanup/apt",
        f"--customize-hook={CLEANING}",
        "",
        str(output),
        f"deb [trusted=yes] copy://{repository} ./",
    )


def write_without_devices(source: Path, target: Path) -> None:
    """Copy a tar without `./dev` and spell its headers anew.

    Engines make `/dev` themselves, a rootless one cannot unpack device nodes, and mmdebstrap's versions differ in it.
    """
    with tarfile.open(source) as old, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as new:
        for member in old:
            if member.name != "./dev" and not member.name.startswith("./dev/"):
                new.addfile(member, old.extractfile(member) if member.isreg() else None)


def _bootstrap(debian: DebianLock, store: Store, on_line: Callable[[str], None] | None) -> RootFilesystem:
    run(["mmdebstrap", "--version"])  # its absence is an error that names it
    mode = "root" if os.geteuid() == 0 else "unshare"
    with store.scratch() as scratch, _workshop(mode, scratch) as workshop:
        repository = workshop / "repository"
        _write_repository(debian.base, store, repository)
        raw, output = scratch / "raw.tar", scratch / "base.tar"
        command = bootstrap_command(debian, mode=mode, repository=repository, output=raw)
        ended = run(command, on_line=on_line)
        if ended.code != 0 or not raw.is_file():
            raise BuildFailedError(
                f"the {debian.suite} base could not be bootstrapped: mmdebstrap in {mode} mode ended with {ended.code}",
                remedy="run as root who may mount, or as a user with subordinate ids (apt-get install uidmap)",
                evidence=tuple(ended.text.splitlines()[-15:]),
            )
        write_without_devices(raw, output)
        size = output.stat().st_size
        return RootFilesystem(sha256=store.add(output), size=size)


@contextmanager
def _workshop(mode: str, scratch: Path) -> Iterator[Path]:
    """Give the folder that mmdebstrap works in: the store's, if it can be read and named there.

    In a user namespace mmdebstrap reads with other ids; and it hands paths to apt and to shells without quotes.
    """
    if mode == "root" and _PLAIN.fullmatch(str(scratch)):
        yield scratch
        return
    with tempfile.TemporaryDirectory(prefix="envbuild-base-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def _write_repository(packages: Iterable[LockedDeb], store: Store, folder: Path) -> None:
    """Write a flat repository: the .debs, and a `Packages` index that gives apt the locked hashes."""
    ordered = tuple(packages)
    paths = debs_folder(ordered, store, folder)
    folder.chmod(0o755)
    stanzas = [_stanza(deb, path) for deb, path in zip(ordered, paths, strict=True)]
    index = folder / "Packages"
    index.write_text("\n".join(stanzas))
    index.chmod(0o644)


def _stanza(deb: LockedDeb, path: Path) -> str:
    answer = run(["dpkg-deb", "--field", str(path)])
    if answer.code != 0:
        raise BuildFailedError(f"{path.name} cannot be read as a Debian package", evidence=(answer.text.strip(),))
    control = answer.stdout.decode().rstrip("\n")
    return f"{control}\nFilename: ./{path.name}\nSize: {deb.size}\nSHA256: {deb.sha256}\n"


def _put(deb: LockedDeb, store: Store, destination: Path) -> Path:
    if not store.has(deb.sha256):
        raise BuildFailedError(
            f"{deb.name} {deb.version} is not in the store", remedy="fetch the lock's packages first"
        )
    source, target = store.sound(deb.sha256), destination / deb_filename(deb)
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:  # another disk
        shutil.copyfile(source, target)
        target.chmod(0o644)
    return target
