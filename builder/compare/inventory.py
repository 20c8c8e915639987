"""The packages inside an image, as a program that runs there sees them: Debian's by dpkg, Python's by their RECORDs.

Runs inside the image with its own Python and the standard library alone; prints a JSON report as its last line.
"""

from __future__ import annotations

import base64
import collections
import csv
import hashlib
import importlib.metadata
import json
import posixpath
import re
import sys
from pathlib import Path
from typing import NamedTuple

DPKG_STATUS = Path("/var/lib/dpkg/status")


class Row(NamedTuple):
    """One line of a RECORD: where the file is, its hash as it is written there, its size in bytes."""

    path: str
    written: str
    size: int


def main() -> None:
    """Print the report: name, version and installed bytes of every package."""
    report = {"debian": list(debian(DPKG_STATUS)), "python": python()}
    sys.stdout.write("\n" + json.dumps(report) + "\n")


def debian(status: Path) -> list[dict[str, object]]:
    """Return the installed packages of a dpkg database; it counts in KiB."""
    if not status.is_file():
        return []
    found = []
    for paragraph in status.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            size = int(fields.get("Installed-Size", "0")) * 1024
            found.append({"name": fields["Package"], "version": fields["Version"], "bytes": size})
    return found


def python() -> list[dict[str, object]]:
    """Return the distributions that this Python finds; of two with one name, the one that it imports."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for metadata in importlib.metadata.distributions():
        found.setdefault(re.sub(r"[-_.]+", "-", metadata.metadata["Name"]).lower(), metadata)
    records = [
        recorded(metadata.read_text("RECORD") or "", str(metadata.locate_file(""))) for metadata in found.values()
    ]
    sizes = installed_bytes(records)
    return [
        {"name": name, "version": metadata.version, "bytes": size}
        for (name, metadata), size in zip(found.items(), sizes, strict=True)
    ]


def recorded(record: str, folder: str) -> list[Row]:
    """Return the rows of a RECORD that have a size; byte code has none."""
    rows = [row for row in csv.reader(record.splitlines()) if len(row) > 2 and row[2].isdigit()]
    return [Row(posixpath.normpath(f"{folder}/{path}"), written, int(size)) for path, written, size, *_ in rows]


def installed_bytes(records: list[list[Row]]) -> list[int]:
    """Return the bytes of the files of each RECORD, but for those that have another one's in their place."""
    written = collections.defaultdict(set)
    for row in (row for rows in records for row in rows):
        written[row.path].add(row.written)
    return [sum(row.size for row in rows if len(written[row.path]) == 1 or is_there(row)) for rows in records]


def is_there(row: Row) -> bool:
    """Say whether the file of a row is the one that its RECORD means."""
    method, _, expected = row.written.partition("=")
    path = Path(row.path)
    if method not in {"sha256", "sha384", "sha512"} or not path.is_file():
        return False
    digest = base64.urlsafe_b64encode(hashlib.new(method, path.read_bytes()).digest())
    return digest.rstrip(b"=").decode() == expected


if __name__ == "__main__":
    main()
