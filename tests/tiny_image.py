"""An image archive with this machine's shell, some of its small programs and the libraries that they load."""

from __future__ import annotations

import io
import platform
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from builder.build.image import ImageSettings, Layer, archive_papers, assemble, layer_names, tar_pieces
from builder.build.tarlayer import Blob
from builder.document import sha256_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PROGRAMS = ("sh", "cat", "head", "id", "ls", "mkdir", "cp", "sleep", "touch")
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def tiny_archive(tag: str, *, extra: Mapping[str, bytes] | None = None, leave_out_layers: int = 0) -> Iterator[bytes]:
    """Yield the archive of an image of one layer, and a second one where there are `extra` files.

    The bytes of the first `leave_out_layers` layers are not in the archive: the engine must have them.
    """
    tars = [tiny_layer()]
    if extra:
        tars.append(_tar([(name, data, 0o644) for name, data in extra.items()]))
    layers = tuple(_layer(tar) for tar in tars)
    settings = ImageSettings(
        epoch=0,
        environment={"PATH": "/bin"},
        command=("/bin/sh",),
        architecture=_ARCHITECTURES[platform.machine()],
    )
    names = layer_names(layers)
    for name, tar in list(zip(names, tars, strict=True))[leave_out_layers:]:
        yield from tar_pieces(name, [tar], len(tar))
    yield from archive_papers(assemble(layers, settings), tag, names)


def tiny_layer() -> bytes:
    """Return the tar of the shell, the programs and their libraries."""
    return _tar(_programs())


def _layer(tar: bytes) -> Layer:
    digest = f"sha256:{sha256_bytes(tar)}"
    return Layer(title="tiny", blob=Blob(digest=digest, size=len(tar), diff_id=digest, unpacked=len(tar)))


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
