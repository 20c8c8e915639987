"""Wheels made by hand: whatever a test wants in them, with a RECORD that fits, or one that does not."""

from __future__ import annotations

import hashlib
import zipfile
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING

from builder.build.wheelfile import WheelInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

EXECUTABLE = 0o100755
REGULAR = 0o100644


def member(name: str, mode: int = REGULAR) -> zipfile.ZipInfo:
    """A file of a wheel with the mode bits of a Unix file."""
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def record_line(name: str, data: bytes, algorithm: str = "sha256") -> str:
    digest = urlsafe_b64encode(hashlib.new(algorithm, data).digest()).decode().rstrip("=")
    return f"{name},{algorithm}={digest},{len(data)}\n"


Files = list[tuple[zipfile.ZipInfo, bytes]]


def make_wheel(
    folder: Path,
    name: str,
    files: Mapping[str, bytes] | Files,
    *,
    version: str = "1.0",
    entry_points: str = "",
    requires: Iterable[str] = (),
    record: str | None = None,
    lie: Mapping[str, bytes] | None = None,
) -> WheelInput:
    """Write `NAME-VERSION-py3-none-any.whl` under its sha256, as in the store.

    `record` replaces the true RECORD; `lie` gives the bytes that it lists for some files instead of the true ones.
    """
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    content = [*(files if isinstance(files, list) else _members(files)), *_metadata(info, metadata, entry_points)]
    if record is None:
        listed = [(item.filename, data) for item, data in content if not item.filename.endswith(("/", ".jws"))]
        record = "".join(record_line(path, (lie or {}).get(path, data)) for path, data in listed)
        record += f"{info}/RECORD,,\n"
    unfinished = folder / "unfinished.whl"
    with zipfile.ZipFile(unfinished, "w") as archive:
        for item, data in [*content, (member(f"{info}/RECORD"), record.encode())]:
            archive.writestr(item, data)
    sha256 = hashlib.sha256(unfinished.read_bytes()).hexdigest()
    return WheelInput(
        name=name.replace("_", "-").lower(),
        version=version,
        filename=f"{name}-{version}-py3-none-any.whl",
        sha256=sha256,
        path=unfinished.rename(folder / sha256),
    )


def _members(files: Mapping[str, bytes]) -> Files:
    return [(member(path), data) for path, data in files.items()]


def _metadata(info: str, metadata: str, entry_points: str) -> Files:
    texts = {
        "METADATA": metadata,
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **({"entry_points.txt": entry_points} if entry_points else {}),
    }
    return _members({f"{info}/{path}": text.encode() for path, text in texts.items()})
