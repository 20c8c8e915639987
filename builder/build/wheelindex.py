"""Compiled wheels for other installers: a folder for `--find-links`, or a simple index (PEP 503)."""

from __future__ import annotations

import html
import os
import shutil
from typing import TYPE_CHECKING
from urllib.parse import quote

from builder.document import sha256_file, write_atomic
from builder.errors import unwritten

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from builder.build.wheels import BuiltWheel
    from builder.store import Store

PAGE = "<!DOCTYPE html>\n<html>\n<body>\n{links}</body>\n</html>\n"


def export_folder(wheels: Iterable[BuiltWheel], folder: Path, store: Store) -> None:
    """Put wheels into a folder under their own names; what else is in it stays."""
    for wheel in wheels:
        _put(wheel, folder / wheel.filename, store)


def export_index(wheels: Iterable[BuiltWheel], folder: Path, store: Store) -> None:
    """Put wheels into a simple index, a folder for each project; wheels that it has already stay."""
    for wheel in wheels:
        place = folder / wheel.name
        _put(wheel, place / wheel.filename, store)
        files = {path.name: sha256_file(path) for path in sorted(place.glob("*.whl"))}
        _write_page(place, {name: f"{quote(name)}#sha256={sha256}" for name, sha256 in files.items()})
    projects = sorted(path.parent.name for path in folder.glob("*/index.html"))
    _write_page(folder, {name: f"{name}/" for name in projects})


def _write_page(folder: Path, links: dict[str, str]) -> None:
    lines = [f'<a href="{html.escape(target)}">{html.escape(text)}</a><br>\n' for text, target in links.items()]
    write_atomic(folder / "index.html", PAGE.format(links="".join(lines)).encode())


def _put(wheel: BuiltWheel, target: Path, store: Store) -> None:
    """Copy a wheel, never as a link: what others do to their folder must not reach the store."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(store.sound(wheel.sha256), partial)
        partial.replace(target)
    except OSError as error:
        raise unwritten(
            error, f"{target} cannot be written: {error.strerror}", remedy="give a folder that you can write"
        ) from error
