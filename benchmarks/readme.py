"""Write benchmarks/README.md from the records in benchmarks/results, or say with --check that it is not current."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
HEAD = """\
# Benchmarks

Made by `python benchmarks/readme.py` from the records in `results/`. Each benchmark is one command that measures
envbuild against a peer in the same run and writes its record; a ratio below 1 is faster than the peer. More than a row:
[where the time of an image goes](image.md), [what flash-attn takes](flash-attn.md).

| benchmark | compared | peer | ratio | goal | met | machine | date |
|---|---|---|---|---|---|---|---|
"""


def page(records: list[dict[str, Any]]) -> str:
    """Return the page: one row for each record, by name."""
    return HEAD + "".join(_row(record) for record in sorted(records, key=lambda record: str(record["name"])))


def _row(record: dict[str, Any]) -> str:
    met = "yes" if record["met"] else "**no**"
    peer = f"`{record['peer']}`" + (f" ({record['peer_version']})" if record["peer_version"] else "")
    script, _, part = str(record["name"]).partition(": ")
    cells = (
        f"`python benchmarks/{script}.py`" + (f": {part}" if part else ""),
        record["compared"],
        peer,
        record["ratio"],
        record["goal"],
        met,
        record["machine"],
        record["date"],
    )
    return f"| {' | '.join(str(cell) for cell in cells)} |\n"


def main() -> int:
    """Write the page, or with --check compare it; return the exit code."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((FOLDER / "results").glob("*.json"))]
    target, text = FOLDER / "README.md", page(records)
    if "--check" in sys.argv[1:]:
        return 0 if target.is_file() and target.read_text(encoding="utf-8") == text else 1
    target.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
