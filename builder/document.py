"""Frozen strict models, canonical bytes, sha256: what every file of the road is made of."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from builder.errors import InvalidDocumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 1 << 20
_SHA256 = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


_DAMAGED = "restore the file from version control, or make it again with `envbuild make RECIPE`"


class Document(BaseModel):
    """A value that crosses a file border: frozen, closed, strict."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    @classmethod
    def from_json(cls, data: bytes | str, *, source: str, remedy: str = _DAMAGED) -> Self:
        """Read a value from JSON text; `source` names the place in the error, an InvalidDocumentError."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = "".join(f"{part}." for part in first["loc"]).rstrip(".")
            message = f"{source}: {place + ': ' if place else ''}{first['msg']}"
            raise InvalidDocumentError(message, remedy=remedy) from None

    def to_plain(self) -> dict[str, Any]:
        """Return the value as JSON-compatible dictionaries and lists, without unset optional fields."""
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)


def canonical_json(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Return the one spelling of a JSON value: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def pretty_json(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Return JSON for people and diffs: indented, keys in the order given, newline at the end."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def canonical_yaml(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Return YAML for people and diffs: keys in the order given, no aliases, no line folding."""
    text: str = yaml.dump(value, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=10_000)
    return text.encode()


def read_yaml_bytes(data: bytes, *, source: str, remedy: str = "") -> Any:  # noqa: ANN401 - any YAML value
    """Return what the YAML of a file says; raise InvalidDocumentError as `source:line:column: what is wrong`.

    A day is text as it is written, since JSON has no days.
    """
    try:
        return yaml.load(data, Loader=_JsonLoader)  # noqa: S506 - one of yaml's safe loaders
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise InvalidDocumentError(f"{source}{place}: {error.problem}", remedy=remedy) from None
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidDocumentError(f"{source}: {str(error).splitlines()[0]}", remedy=remedy) from None


class _JsonLoader(yaml.CSafeLoader):
    """Gives values that JSON has."""


_JsonLoader.add_constructor("tag:yaml.org,2002:timestamp", lambda _loader, node: node.value)


class _PlainDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ANN401, ARG002 - signature of yaml
        return True


def sha256_bytes(data: bytes) -> str:
    """Return the hexadecimal sha256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def hashes_in(data: bytes) -> frozenset[str]:
    """Return every hexadecimal sha256 that a text mentions."""
    return frozenset(match.decode() for match in _SHA256.findall(data))


def sha256_file(path: Path) -> str:
    """Return the hexadecimal sha256 of a file, reading it in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def key_of(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return the key of a job: the sha256 of the canonical JSON of all its inputs."""
    return sha256_bytes(canonical_json(value))


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old bytes or the new ones, never a part; an OSError names `path`.

    What stands in the place of a file, as /dev/stdout or a link does, stays, and is written through.
    """
    try:
        if path.is_symlink() or path.is_char_device() or path.is_fifo():
            path.write_bytes(data)
            return
        temporary = _written_beside(path, data)
        try:
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _written_beside(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    from tempfile import mkstemp  # noqa: PLC0415 - slow to import, and most commands write nothing

    descriptor, name = mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def tree_files(root: Path) -> Iterator[Path]:
    """Yield the files of a source tree in one order, without byte code, caches and version control."""
    skipped = {"__pycache__", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
    for path in sorted(root.rglob("*"), key=lambda p: p.relative_to(root).as_posix().encode()):
        parts = path.relative_to(root).parts
        if path.is_file() and not skipped.intersection(parts) and not any(p.endswith(".egg-info") for p in parts):
            yield path


def tree_digest(root: Path) -> str:
    """Return the sha256 over names, executable bits and bytes of a source tree."""
    return key_of(
        [
            [path.relative_to(root).as_posix(), bool(path.stat().st_mode & 0o100), sha256_file(path)]
            for path in tree_files(root)
        ]
    )
