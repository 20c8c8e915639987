"""How long `envbuild publish` takes when a registry has it all, against bare looks at its blobs."""

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

from builder.registry.client import RegistryClient
from builder.registry.reference import Repository
from builder.settings import settings_from
from tests.docker.docker_registry import docker_registry

GOAL = 3.0  # seconds
PROJECT = Path(__file__).parents[1]
RECIPE = PROJECT / "recipes" / "quickstart.yaml"
RESULT = Path(__file__).parent / "results" / "publish.json"
KEY = "openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt"


def seconds(command: list[str]) -> float:
    """Run a command and return its seconds."""
    start = time.perf_counter()
    subprocess.run(command, check=True, cwd=PROJECT, capture_output=True)
    return time.perf_counter() - start


def looks(host: str) -> list[str]:
    """Return the command that asks the registry for every blob of what was published, once each."""
    with RegistryClient(settings_from()) as client:
        manifest = client.manifest(Repository(registry=host, name="own").at("quickstart"))
    blobs = [blob.digest for blob in (manifest.config, *manifest.layers)]
    return ["curl", "--silent", "--fail", "--head", *(f"http://{host}/v2/own/blobs/{digest}" for digest in blobs)]


def main() -> None:
    """Measure, print the figures and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, docker_registry(Path(name) / "registry") as host:
        key = Path(name) / "key"
        key.write_bytes(subprocess.run(["sh", "-c", KEY], check=True, capture_output=True).stdout)
        program = [sys.executable, "-c", "from builder.cli import main; main()", "publish", str(RECIPE)]
        publish = [*program, "--to", f"{host}/own", "--key", str(key)]
        first, look = seconds(publish), looks(host)
        pairs = [(seconds(publish), seconds(look)) for _ in range(arguments.runs)]
        size = sum(path.stat().st_size for path in (Path(name) / "registry").rglob("data")) >> 20
    own, peer = (statistics.median(column) for column in zip(*pairs, strict=True))
    version = subprocess.run(["curl", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    record = {
        "name": "publish",
        "compared": f"quickstart, {size} MiB in {len(look) - 4} blobs, nothing new: {own:.1f} s with proof and tags, "
        f"against {peer:.2f} s (the first time {first:.0f} s)",
        "peer": "curl --head of every blob",
        "peer_version": f"curl {version}",
        "ratio": round(own / peer, 1),
        "goal": f"under {GOAL:.0f} s",
        "met": own < GOAL,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}, "
        f"Python {platform.python_version()}",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }
    print(json.dumps(record, indent=2))
    RESULT.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
