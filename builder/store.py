"""The content-addressed store: files by sha256, results by key; atomic, shared by processes, safe against `kill -9`.

Layout under the root: `files/ab/abcd…` (bytes named by their sha256), `results/KIND/KEY.json` (what a job with that key
produced, with a hash over it), `git/` (bare repositories by address), `tmp/` (unfinished work, never read),
`builds/KEY/` (compilations that go on where they were), `ccache/` (the compilers' cache), `locks/` (one advisory lock
per running job, and `store`, which every process that has the store open holds shared), `logs/`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import weakref
from concurrent.futures import ThreadPoolExecutor
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, TypeVar

from builder.document import CHUNK, key_of, pretty_json, sha256_file, write_atomic
from builder.errors import BuildFailedError, ResolveError, UsageError, unwritten
from builder.giveup import keep_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")
DOOR = "store"
LOOK_SECONDS = 0.05  # between two looks at a lock that another process holds
FOLDERS = ("files", "results", "tmp", "locks", "logs")
_NOT_QUOTABLE = re.compile(r'[%"\\\x00-\x1f]')


class DamagedFileError(BuildFailedError):
    """A file of the store is not what its name says; `sha256` is the name."""

    default_remedy: ClassVar[str] = "check the disk of the store, or set ENVBUILD_STORE to a folder on another one"

    def __init__(self, message: str, *, sha256: str) -> None:
        super().__init__(message)
        self.sha256 = sha256


class DiskFullError(BuildFailedError):
    """The store's disk has no space left."""

    default_remedy: ClassVar[str] = "make room with `envbuild gc`, or set ENVBUILD_STORE to a folder on a larger disk"


class Store:
    """Files by sha256 and job results by key, under one folder.

    Opening waits while another process removes files (`alone`). `on_wait` hears what a process waits for.
    """

    def __init__(self, root: Path, on_wait: Callable[[str], None] | None = None) -> None:
        self.root = root
        self._on_wait = on_wait or (lambda _text: None)
        self._proven: set[str] = set()
        if unusable := _NOT_QUOTABLE.findall(str(root)):
            raise UsageError(
                f"the store's path {str(root)!r} has {' '.join(unusable)!r} in it, which apt's settings cannot hold",
                remedy='set ENVBUILD_STORE to a path without %, ", \\ and control characters',
            )
        try:
            for name in FOLDERS:
                (root / name).mkdir(parents=True, exist_ok=True)
            self._door = os.open(root / "locks" / DOOR, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise unwritten(
                error,
                f"the store {root} cannot be written: {error.strerror}",
                remedy="set ENVBUILD_STORE to a folder that you can write",
            ) from error
        weakref.finalize(self, os.close, self._door)
        self._lock(self._door, fcntl.LOCK_SH, "another process removes files from the store")

    def path(self, sha256: str) -> Path:
        """Return where the bytes with this hash are, or would be."""
        return self.root / "files" / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        """Say whether the bytes with this hash are here."""
        return self.path(sha256).is_file()

    def sound(self, sha256: str) -> Path:
        """Return where a file is, its bytes proven once in the life of this store object; raise DamagedFileError."""
        path = self.path(sha256)
        if sha256 not in self._proven:
            self._prove(sha256, sha256_file(path) if path.is_file() else None)
        return path

    def read(self, sha256: str) -> Iterator[bytes]:
        """Yield a file in pieces; raise DamagedFileError instead of yielding the last one if the bytes are wrong."""
        digest, held = hashlib.sha256(), b""
        with self.path(sha256).open("rb") as file:
            while piece := file.read(CHUNK):
                digest.update(piece)
                if held:
                    yield held
                held = piece
        self._prove(sha256, digest.hexdigest())
        yield held

    def drop(self, sha256: str) -> None:
        """Remove a file, so that it is fetched or made again."""
        self.path(sha256).unlink(missing_ok=True)
        self._proven.discard(sha256)

    def damaged(self, sha256: str, seen: str | None) -> DamagedFileError:
        """Return the error for a file whose bytes have the sha256 `seen` (None: the file is not there any more)."""
        found = "is not there any more" if seen is None else f"is damaged: its bytes have the sha256 {seen}"
        return DamagedFileError(f"{self.path(sha256)} {found}", sha256=sha256)

    def _prove(self, sha256: str, seen: str | None) -> None:
        if seen != sha256:
            raise self.damaged(sha256, seen)
        self._proven.add(sha256)

    def add(self, path: Path, sha256: str | None = None) -> str:
        """Move a finished file into the store and return its sha256; a wrong expectation is an error."""
        seen = sha256_file(path)
        if sha256 is not None and seen != sha256:
            path.unlink()
            raise ResolveError(f"{path.name} has sha256 {seen}, the lock says {sha256}")
        self.keep(path, seen)
        return seen

    def keep(self, path: Path, sha256: str) -> None:
        """Move a finished file into the store whose bytes this process hashed while it wrote them."""
        target = self.path(sha256)
        target.parent.mkdir(exist_ok=True)
        path.chmod(0o644)
        with self.room(), path.open("rb") as file:
            os.fsync(file.fileno())
        path.replace(target)
        self._proven.add(sha256)

    def add_bytes(self, data: bytes) -> str:
        """Keep some bytes and return their sha256."""
        sha256 = hashlib.sha256(data).hexdigest()
        if not self.has(sha256):
            with self.room():
                write_atomic(self.path(sha256), data)
        return sha256

    def result(self, kind: str, key: str) -> dict[str, Any] | None:
        """Return what a finished job left under its key, or None; a damaged record counts as none."""
        try:
            record = json.loads(self.record(kind, key).read_bytes())
            value = record["value"]
            return value if isinstance(value, dict) and key_of(value) == record["sha256"] else None
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def keep_result(self, kind: str, key: str, value: dict[str, Any]) -> None:
        """Record what a job produced; only after every file that it names is in the store."""
        with self.room():
            write_atomic(self.record(kind, key), pretty_json({"value": value, "sha256": key_of(value)}))

    def forget_result(self, kind: str, key: str) -> None:
        """Drop the record of a job, so that it runs again."""
        self.record(kind, key).unlink(missing_ok=True)

    def results(self) -> Iterator[tuple[str, str]]:
        """Yield kind and key of every result, sorted."""
        for path in sorted((self.root / "results").glob("*/*.json")):
            if not path.name.startswith("."):
                yield path.parent.name, path.stem

    def record(self, kind: str, key: str) -> Path:
        """Return where the record of a job is, or would be."""
        return self.root / "results" / kind / f"{key}.json"

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Give a private folder on the store's disk, removed at the end; left-overs of killed processes go too."""
        self._sweep()
        with self.room():
            path = Path(tempfile.mkdtemp(dir=self.root / "tmp", prefix=f"{os.getpid()}-"))
            try:
                yield path
            finally:
                shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def room(self) -> Iterator[None]:
        """Turn a full disk into a DiskFullError that says how much is free."""
        try:
            yield
        except OSError as error:
            if error.errno not in {ENOSPC, EDQUOT}:
                raise
            free = shutil.disk_usage(self.root).free
            raise DiskFullError(f"no space is left on the disk: the store {self.root} has {free >> 20} MiB") from error

    @contextlib.contextmanager
    def exclusive(self, name: str) -> Iterator[None]:
        """Hold a lock between processes; a process that dies gives it back.

        Raises CancelledError in a thread that waits for it when its work is given up.
        """
        with self.room(), (self.root / "locks" / name).open("wb") as file:
            self._lock(file.fileno(), fcntl.LOCK_EX, f"another process does the same ({name[:40]})")
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the store while no other process has it open; waits until those that run now have ended."""
        self._lock(self._door, fcntl.LOCK_EX, "builds that use the store are running")
        try:
            yield
        finally:
            fcntl.flock(self._door, fcntl.LOCK_SH)

    def _lock(self, descriptor: int, kind: int, reason: str) -> None:
        if not _is_locked(descriptor, kind):
            self._on_wait(f"waiting: {reason}")
            while not _is_locked(descriptor, kind):
                keep_on(LOOK_SECONDS)

    def log(self, name: str, *, append: bool = False) -> IO[bytes]:
        """Open a log for writing, anew or at its end; its path is `.name`."""
        path = self.root / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab" if append else "wb")

    def unfinished(self, key: str) -> Path:
        """Return the folder where a job with this key goes on after an interruption; the finished job removes it."""
        return self.root / "builds" / key

    def _sweep(self) -> None:
        for path in (self.root / "tmp").iterdir():
            owner = path.name.split("-", 1)[0]
            if owner.isdigit() and not is_running(int(owner)):
                shutil.rmtree(path, ignore_errors=True)


def _is_locked(descriptor: int, kind: int) -> bool:
    """Lock a file if nobody holds it; whether it is locked now."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def mended(store: Store, attempt: Callable[[], T], say: Callable[[str], None]) -> T:
    """Return what `attempt` returns; each time that it meets a damaged file, drop that file and try again.

    Every stage makes or fetches what the store does not have. A file that is damaged twice is an error: a bad disk.
    """
    dropped: set[str] = set()
    while True:
        try:
            return attempt()
        except DamagedFileError as error:
            if error.sha256 in dropped:
                raise
            dropped.add(error.sha256)
            store.drop(error.sha256)
            say(f"{error.message}; it is fetched or made again")


def prove_all(store: Store, files: Iterable[str]) -> None:
    """Prove files of the store, several at once; raise DamagedFileError for the first that is damaged."""
    with ThreadPoolExecutor() as pool:
        try:
            for _ in pool.map(store.sound, files):
                keep_on()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def is_running(pid: int) -> bool:
    """Say whether a process with this id runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
