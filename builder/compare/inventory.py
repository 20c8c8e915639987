"""The packages inside an image, as a program that runs there sees them: Debian's by dpkg, Python's by their RECORDs.

Runs inside the image with its own Python and the standard library alone; prints a JSON report as its last line.
"""

from __future__ import annotations

import csv
import importlib.metadata
import json
import re
import sys
from pathlib import Path

DPKG_STATUS = Path("/var/lib/dpkg/status")


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
    found: dict[str, dict[str, object]] = {}
    for metadata in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", metadata.metadata["Name"]).lower()
        size = recorded_bytes(metadata.read_text("RECORD") or "")
        found.setdefault(name, {"name": name, "version": metadata.version, "bytes": size})
    return list(found.values())


def recorded_bytes(record: str) -> int:
    """Return the sum of the sizes in a RECORD; byte code, which is listed without one, does not count."""
    return sum(int(row[2]) for row in csv.reader(record.splitlines()) if len(row) > 2 and row[2].isdigit())


if __name__ == "__main__":
    main()
