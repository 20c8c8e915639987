"""The records of the benchmark of images: each measurement against its goal."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
GOALS = {
    "cold, pip": ("at most {} times the time of pip", 0.5),
    "cold, uv": ("at most {} times the time of uv", 1.0),
    "cold, limit": ("at most {} times the limit", 2.0),
    "cold, memory": ("under {} GB", 1.0),
    "size": ("at most {} times the naive image", 0.6),
    "pin changed": ("at most {} times the time of pip", 0.1),
    "pin pushed": ("at most {} times the changed package", 1.1),
    "four recipes": ("at most {} times one", 1.2),
    "nothing changed": ("under {} s", 1.0),
}


def record(name: str, text: str, value: float, *, peer: str, release: str = "") -> dict[str, Any]:
    """Return the record of one measurement; the goal is met up to its bound."""
    goal, bound = GOALS[name]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[1]:.0f}"
    return {
        "name": f"image: {name}",
        "compared": text,
        "peer": peer,
        "peer_version": release,
        "ratio": round(value, 3),
        "goal": goal.format(bound),
        "met": value <= bound,
        "machine": machine,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }


def write_record(each: dict[str, Any], *labels: str) -> None:
    """Write a record into a file by its name, which says what it has of its own: a stack, a kind of store; print it."""
    said = ", ".join(label for label in labels if label)
    named = {**each, "name": f"{each['name']} ({said})" if said else each["name"]}
    path = RESULTS / f"{re.sub('[^a-z0-9]+', '-', named['name'].lower()).strip('-')}.json"
    path.write_text(json.dumps(named, indent=2) + "\n", encoding="utf-8")
    print(f"{named['name']}: {each['ratio']} ({each['compared']}; {each['goal']}: {each['met']})", flush=True)
