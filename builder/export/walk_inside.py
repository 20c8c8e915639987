"""Runs inside an image: writes every path of it with kind, mode, owner, content and extended attributes, as JSON lines.

What a container engine mounts or makes by itself is left out. Only the standard library is imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SKIPPED = {"/.dockerenv", "/dev", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/proc", "/run", "/sys", "/walk"}
# Each installer lists these in its own way, or not at all, and in its own order.
OWN_ROWS = ("/INSTALLER", "/RECORD", "/REQUESTED", ".pyc")


def walk(folder: str) -> Iterator[tuple[str, list[object]]]:
    """Yield [path, facts] of everything below a folder, without following links."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.path in SKIPPED:
            continue
        seen = entry.stat(follow_symlinks=False)
        facts = [stat.S_IFMT(seen.st_mode), stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid]
        yield entry.path, [*facts, content(entry), attributes(entry.path)]
        if entry.is_dir(follow_symlinks=False):
            yield from walk(entry.path)


def content(entry: os.DirEntry[str]) -> str:
    """Return the target of a link and the sha256 of a file; of a RECORD, that of its rows in one order."""
    if entry.is_symlink():
        return str(Path(entry.path).readlink())
    if not entry.is_file(follow_symlinks=False):
        return ""
    data = Path(entry.path).read_bytes()
    if entry.path.endswith(".dist-info/RECORD"):
        rows = [row for row in data.decode().splitlines() if not row.split(",")[0].endswith(OWN_ROWS)]
        data = "\n".join(sorted(rows)).encode()
    return hashlib.sha256(data).hexdigest()


def attributes(path: str) -> dict[str, str]:
    """Return the extended attributes, file capabilities among them."""
    names = os.listxattr(path, follow_symlinks=False)
    return {name: os.getxattr(path, name, follow_symlinks=False).hex() for name in names}


def main(result: str) -> None:
    """Write the walk of the whole root and the environment variables."""
    with Path(result).open("w", encoding="utf-8", errors="surrogateescape") as file:
        print(json.dumps(dict(os.environ)), file=file)
        for path, facts in walk("/"):
            print(json.dumps([path, facts]), file=file)


if __name__ == "__main__":
    main(sys.argv[1])
