"""The content-addressed store: files by sha256, results by key; atomic, shared by processes, safe against `kill -9`.

Layout under the root: `files/ab/abcd…` (bytes named by their sha256), `results/KIND/KEY.json` (what a job with that key
produced), `git/` (bare repositories by address), `tmp/` (unfinished work, never read), `locks/` (one advisory lock per
running job), `logs/`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from builder.document import pretty_json, sha256_file, write_atomic
from builder.errors import BuildFailedError, ResolveError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Store:
    """Files by sha256 and job results by key, under one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("files", "results", "tmp", "locks", "logs"):
            try:
                (root / name).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise BuildFailedError(
                    f"the store {root} cannot be written: {error.strerror}",
                    remedy="set ENVBUILD_STORE to a folder that you can write",
                ) from error

    def path(self, sha256: str) -> Path:
        """Return where the bytes with this hash are, or would be."""
        return self.root / "files" / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        """Say whether the bytes with this hash are here."""
        return self.path(sha256).is_file()

    def add(self, path: Path, sha256: str | None = None) -> str:
        """Move a finished file into the store and return its sha256; a wrong expectation is an error."""
        seen = sha256_file(path)
        if sha256 is not None and seen != sha256:
            path.unlink()
            raise ResolveError(f"{path.name} has sha256 {seen}, the lock says {sha256}")
        target = self.path(seen)
        target.parent.mkdir(exist_ok=True)
        path.chmod(0o644)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.replace(target)
        return seen

    def add_bytes(self, data: bytes) -> str:
        """Keep some bytes and return their sha256."""
        sha256 = hashlib.sha256(data).hexdigest()
        if not self.has(sha256):
            write_atomic(self.path(sha256), data)
        return sha256

    def result(self, kind: str, key: str) -> dict[str, Any] | None:
        """Return what a finished job left under its key, or None."""
        try:
            value = json.loads((self.root / "results" / kind / f"{key}.json").read_bytes())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return value if isinstance(value, dict) else None

    def keep_result(self, kind: str, key: str, value: dict[str, Any]) -> None:
        """Record what a job produced; only after every file that it names is in the store."""
        write_atomic(self.root / "results" / kind / f"{key}.json", pretty_json(value))

    def forget_result(self, kind: str, key: str) -> None:
        """Drop the record of a job, so that it runs again."""
        (self.root / "results" / kind / f"{key}.json").unlink(missing_ok=True)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Give a private folder on the store's disk, removed at the end; left-overs of killed processes go too."""
        self._sweep()
        path = Path(tempfile.mkdtemp(dir=self.root / "tmp", prefix=f"{os.getpid()}-"))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def exclusive(self, name: str) -> Iterator[None]:
        """Hold a lock between processes; a process that dies gives it back."""
        with (self.root / "locks" / name).open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def log(self, name: str) -> IO[bytes]:
        """Open a log for writing; its path is `.name`."""
        path = self.root / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("wb")

    def _sweep(self) -> None:
        for path in (self.root / "tmp").iterdir():
            owner = path.name.split("-", 1)[0]
            if owner.isdigit() and not _is_running(int(owner)):
                shutil.rmtree(path, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
