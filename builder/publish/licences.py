"""Under which licences a file may be used: what a wheel's metadata and a Debian package's copyright file say."""

from __future__ import annotations

import email
import re
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from builder.errors import BuildFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from email.message import Message
    from pathlib import Path

LONGEST_NAME = 100  # characters; a longer `License` field is the licence's text
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
_CLASSIFIER = re.compile(r"License :: (?:OSI Approved :: )?(.+)")
_COPYRIGHT = re.compile(r"\./usr/share/doc/([^/]+)/copyright")
_PARAGRAPH = re.compile(rb"^License:[ \t]*(\S[^\n]*)$", re.MULTILINE)


def wheel_licences(path: Path) -> list[dict[str, Any]]:
    """Return the licences of a wheel in CycloneDX's form, none if its metadata does not say them."""
    try:
        with zipfile.ZipFile(path) as wheel:
            name = next((name for name in wheel.namelist() if _METADATA.fullmatch(name)), None)
            metadata = email.message_from_bytes(wheel.read(name)) if name else None
    except (OSError, zipfile.BadZipFile) as error:
        raise BuildFailedError(f"the wheel {path} cannot be read: {error}") from error
    return _stated(metadata) if metadata is not None else []


def _stated(metadata: Message) -> list[dict[str, Any]]:
    """Return what the metadata states, the strictest field first (Core Metadata 2.4)."""
    for field in ("License-Expression", "License"):
        text = " ".join((metadata[field] or "").split())
        if text and text.lower() not in {"unknown", "none"} and len(text) <= LONGEST_NAME:
            return [_licence(text)]
    found = (_CLASSIFIER.fullmatch(line) for line in metadata.get_all("Classifier") or ())
    return [{"license": {"name": match[1]}} for match in found if match and match[1] != "OSI Approved"]


def _licence(text: str) -> dict[str, Any]:
    try:
        return {"expression": str(canonicalize_license_expression(text))}
    except InvalidLicenseExpression:
        return {"license": {"name": text}}


def debian_licences(rootfs: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the licences of the Debian packages in a root filesystem (a tar), by package.

    They bear the short names of Debian's machine-readable copyright files; a package that has none states nothing.
    """
    texts: dict[str, bytes] = {}
    links: dict[str, str] = {}
    with tarfile.open(rootfs) as archive:
        for member in archive:
            found = _COPYRIGHT.fullmatch(member.name)
            if found and (file := archive.extractfile(member) if member.isreg() else None):
                texts[found[1]] = file.read()
            elif member.issym() and member.name.startswith("./usr/share/doc/") and member.name.count("/") == 4:
                links[member.name.rpartition("/")[2]] = member.linkname
    shared = {name: texts[target] for name, target in links.items() if target in texts}
    return {name: _short_names(text) for name, text in sorted({**texts, **shared}.items())}


def _short_names(text: bytes) -> list[dict[str, Any]]:
    names = {" ".join(match.decode(errors="replace").split())[:LONGEST_NAME] for match in _PARAGRAPH.findall(text)}
    return [{"license": {"name": name}} for name in _sorted(names)]


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (name.lower(), name))
