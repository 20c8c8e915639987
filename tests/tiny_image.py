"""A docker-archive with this machine's shell, some of its small programs and the libraries that they load."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PROGRAMS = ("sh", "cat", "head", "id", "ls", "mkdir", "cp", "sleep", "touch")
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def tiny_archive(tag: str, *, extra: Mapping[str, bytes] | None = None, leave_out_layers: int = 0) -> Iterator[bytes]:
    """Yield a docker-archive of one layer, and a second one where there are `extra` files.

    The bytes of the first `leave_out_layers` layers are not in the archive: the engine must have them.
    """
    layers = [tiny_layer()]
    if extra:
        layers.append(_tar([(name, data, 0o644) for name, data in extra.items()]))
    config = _config([diff_id(layer) for layer in layers])
    names = [f"{diff_id(layer)[7:]}.tar" for layer in layers]
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": names}]
    entries = [("manifest.json", json.dumps(manifest).encode(), 0o644), ("config.json", config, 0o644)]
    entries += [(name, layer, 0o644) for name, layer in list(zip(names, layers, strict=True))[leave_out_layers:]]
    yield _tar(entries)


def tiny_layer() -> bytes:
    """Return the tar of the shell, the programs and their libraries."""
    return _tar(_programs())


def diff_id(layer: bytes) -> str:
    """Return the digest that a layer's tar is known by."""
    return f"sha256:{hashlib.sha256(layer).hexdigest()}"


def _config(diff_ids: list[str]) -> bytes:
    return json.dumps(
        {
            "architecture": _ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"]},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }
    ).encode()


def _programs() -> list[tuple[str, bytes, int]]:
    files: dict[str, Path] = {}
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found is not None, f"this machine has no {name}"
        files[f"bin/{name}"] = Path(found)
        listed = subprocess.run(["ldd", found], check=True, capture_output=True, text=True).stdout
        files.update({library.lstrip("/"): Path(library) for library in _LIBRARY.findall(listed)})
    return [(name, path.resolve().read_bytes(), 0o755) for name, path in sorted(files.items())]


def _tar(entries: Iterable[tuple[str, bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data, mode in entries:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()
