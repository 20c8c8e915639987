"""Base images made by the tests: this machine's own Python below, a second layer with the marks of a distribution."""

from __future__ import annotations

import tarfile
from io import BytesIO
from typing import TYPE_CHECKING

from builder.build.image import ImageSettings, assemble
from builder.build.layers import make_base_layer
from tests.docker.python_rootfs import system_python
from tests.registry_image import tar_of
from tests.workshop import make_rootfs

if TYPE_CHECKING:
    from pathlib import Path

    from builder.build.image import Image
    from builder.store import Store

SETTINGS = ImageSettings(
    epoch=1_764_000_000,
    environment={"PATH": "/opt/tools/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": "/opt/tools/lib"},
    labels={"maker": "tests"},
    command=("sh",),
    entrypoint=("/opt/tools/entry",),
    workdir="/opt/tools",
)
STATUS = (
    "Package: libc6\nStatus: install ok installed\nVersion: 2.36-9\n\n"
    "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\n"
    "Package: gcc\nStatus: install ok installed\nVersion: 4:12.2.0-3\n"
)
OLD = {"usr/bin/python3.4": b"", "opt/tools/entry": b""}
INTERPRETER = f"/usr/bin/python{system_python()}"


LIBC = b"GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\n"
LOOKS_LIKE_PYTHON = tar_of({INTERPRETER.lstrip("/"): b"", "usr/lib/x86_64-linux-gnu/libc.so.6": LIBC, **OLD})


def make_base_image(
    store: Store, rootfs: bytes = LOOKS_LIKE_PYTHON, *, mark: str = "1", settings: ImageSettings = SETTINGS
) -> Image:
    """Make an image of two layers whose second one removes an interpreter of the first; `mark` makes it another."""
    upper = {
        "usr/bin/.wh.python3.4": b"",
        "var/lib/dpkg/status": STATUS.encode(),
        "opt/tools/mark": mark.encode(),
    }
    layers = (store.add_bytes(rootfs), store.add_bytes(tar_of(upper)))
    return assemble(tuple(make_base_layer(layer, store=store) for layer in layers), settings)


def real_rootfs(folder: Path) -> bytes:
    """Return the tar of a first layer in which this machine's Python runs."""
    rootfs = make_rootfs(folder / "rootfs.tar")
    with tarfile.open(rootfs, "a") as archive:
        for name in OLD:
            archive.addfile(tarfile.TarInfo(name), BytesIO())
    return rootfs.read_bytes()
