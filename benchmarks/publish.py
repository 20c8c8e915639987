"""How long `envbuild publish` takes when a registry has it all, against a second `docker push` of the same image."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.docker.docker_registry import docker_registry

GOAL = 3.0  # seconds
PROJECT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "publish.json"
KEY = "openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt"


def seconds(command: list[str]) -> float:
    """Run a command and return its seconds."""
    start = time.perf_counter()
    subprocess.run(command, check=True, cwd=PROJECT, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Measure, print the figures and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", type=Path, default=PROJECT / "recipes" / "quickstart.yaml")
    parser.add_argument("--image", default="envbuild/quickstart:latest", help="the same image in the engine")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, docker_registry(Path(name) / "registry") as host:
        key = Path(name) / "key"
        key.write_bytes(subprocess.run(["sh", "-c", KEY], check=True, capture_output=True).stdout)
        program = [sys.executable, "-c", "from builder.cli import main; main()", "publish", str(arguments.recipe)]
        publish = [*program, "--to", f"{host}/own", "--key", str(key)]
        pushed = f"{host}/peer:1"
        try:
            subprocess.run(["docker", "tag", arguments.image, pushed], check=True)
            push = ["docker", "push", "--quiet", pushed]
            first = (seconds(publish), seconds(push))
            pairs = [(seconds(publish), seconds(push)) for _ in range(arguments.runs)]
        finally:
            subprocess.run(["docker", "rmi", pushed], check=False, capture_output=True)
        size = sum(path.stat().st_size for path in (Path(name) / "registry").rglob("data")) >> 20
    own, peer = (statistics.median(column) for column in zip(*pairs, strict=True))
    version = subprocess.run(["docker", "--version"], check=True, capture_output=True, text=True).stdout.split()[2]
    record = {
        "name": "publish",
        "compared": f"quickstart, nothing new: {own:.1f} s with proof and tags, against {peer:.1f} s "
        f"(the first time, {size} MiB of both: {first[0]:.0f} s against {first[1]:.0f} s)",
        "peer": "docker push",
        "peer_version": f"docker {version.rstrip(',')}",
        "ratio": round(own / peer, 2),
        "goal": f"under {GOAL:.0f} s",
        "met": own < GOAL,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }
    print(json.dumps(record, indent=2))
    RESULT.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
