"""The PEP 751 file: read and written for one target, each package as one wheel named by file name and sha256."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from builder.document import Document
from builder.errors import InvalidDocumentError
from builder.lock.model import LockedWheel, Sha256

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = "wheels"


class _Hashes(Document):
    sha256: Sha256


class _Wheel(Document):
    name: str
    path: str
    size: int
    hashes: _Hashes


class _Package(Document):
    name: str
    version: str
    wheels: Annotated[tuple[_Wheel, ...], Field(min_length=1, max_length=1)]


class _Pylock(Document):
    lock_version: Annotated[Literal["1.0"], Field(alias="lock-version")]
    environments: tuple[str, ...]
    requires_python: Annotated[str, Field(alias="requires-python")]
    created_by: Annotated[Literal["envbuild"], Field(alias="created-by")]
    packages: tuple[_Package, ...] = ()


def write_pylock(wheels: Iterable[LockedWheel], *, python: str) -> bytes:
    """Return a `pylock.toml` for Linux on x86_64 and a Python minor version; equal wheels give equal bytes.

    It names no index: every wheel is `wheels/FILENAME` beside the file, with its size and sha256. uv and pip read it
    once that folder is filled.
    """
    header = (
        'lock-version = "1.0"\n'
        "environments = [\"sys_platform == 'linux' and platform_machine == 'x86_64'\"]\n"
        f'requires-python = "=={python}.*"\n'
        'created-by = "envbuild"\n'
    )
    packages = sorted(wheels)
    # `packages` is required, also where it is empty (PEP 751).
    body = "".join(_package(wheel) for wheel in packages) if packages else "packages = []\n"
    return (header + body).encode()


def _package(wheel: LockedWheel) -> str:
    return (
        f'\n[[packages]]\nname = "{wheel.name}"\nversion = "{wheel.version}"\n'
        f'wheels = [{{ name = "{wheel.filename}", path = "{FOLDER}/{wheel.filename}", size = {wheel.size}, '
        f'hashes = {{ sha256 = "{wheel.sha256}" }} }}]\n'
    )


def read_pylock(content: bytes, source: str) -> tuple[LockedWheel, ...]:
    """Return the wheels of a `pylock.toml` that envbuild wrote, by name; `source` names the file in errors.

    Raise InvalidDocumentError, naming the place, for anything that such a file does not hold.
    """
    try:
        plain = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidDocumentError(f"{source}: {error}") from None
    file = _Pylock.from_json(json.dumps(plain, default=str), source=source)
    return tuple(sorted(_locked(package, source) for package in file.packages))


def _locked(package: _Package, source: str) -> LockedWheel:
    wheel = package.wheels[0]
    if wheel.path != f"{FOLDER}/{wheel.name}" or "/" in wheel.name:
        raise InvalidDocumentError(f"{source}: {package.name}: path is {wheel.path!r}, not {FOLDER}/{wheel.name}")
    return LockedWheel(
        name=package.name,
        version=package.version,
        filename=wheel.name,
        sha256=wheel.hashes.sha256,
        size=wheel.size,
    )
