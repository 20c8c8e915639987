"""How fast, how small and how much shared images are, against `docker build` with pip and with uv on the same wheels.

Needs a Docker engine, Debian's `docker-registry`, 20 GB of disk and a network for the locks. The size is measured if a
folder with the wheels of the whole CUDA toolkit is given, for 15 GB more
(`pip download "cuda-toolkit[all]==13.0.2" nvidia-cudnn-cu13==9.19.0.56 nvidia-nccl-cu13==2.28.9`). What is timed uses
no network. The peers read the same wheels from a local image through a bind mount and make byte code as the assembled
image has it, also that of packages' tests, which it leaves out (pip and uv compile everything). They are favoured:
their context is empty, apt's step is done before, and pip leaves no cache in the image, as it would of wheels that come
from an index.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import sys
import tempfile
import time
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byte_code import write_byte_code
from image_bench import MARK, PINS, Bench, devel_image, pip_wheel, prepare

from builder.build.compression import GZIP
from builder.build.image import chain_ids
from builder.build.published import push_image
from builder.build.tarlayer import is_worth_keeping
from builder.commands.state import State
from builder.lock.stage import locked_recipe
from builder.recipe.source import read_recipe
from builder.registry.client import RegistryClient
from builder.registry.layer import open_unpacked
from builder.registry.reference import Repository
from tests.docker.docker_registry import docker_registry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from builder.build.image import Image
    from builder.lock.model import LockedWheel
    from builder.store import Store

RESULTS = Path(__file__).parent / "results"
MEASUREMENTS = ("cold", "pin", "four", "again", "size")
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


def disk_bandwidth(folder: Path) -> float:
    """Return what the disk takes, in bytes per second, of bytes that cannot be compressed."""
    block, count = os.urandom(16 << 20), 64
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        start = time.perf_counter()
        for _ in range(count):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return count * len(block) / (time.perf_counter() - start)


def compressed_here(image: Image, wheels: Iterable[LockedWheel], store: Store) -> int:
    """Return how many bytes of the image are compressed: all that its layers do not take over from the wheels."""
    kept = 0
    for wheel in wheels:
        with zipfile.ZipFile(store.path(wheel.sha256)) as archive:
            kept += sum(i.file_size for i in archive.infolist() if is_worth_keeping(i))
    return sum(layer.blob.unpacked for layer in image.layers[1:]) - kept


def compression_seconds(image: Image, wheels: Iterable[LockedWheel], store: Store) -> float:
    """Return how long one core needs to compress a sample of small files, scaled to all that is compressed."""
    [layer] = [layer for layer in image.layers if layer.title.startswith("transformers ")]
    with store.path(layer.blob.digest.removeprefix("sha256:")).open("rb") as file:
        content = open_unpacked(file, layer.media_type)
        sample = content.read() if content else b""
    packer, start = GZIP.packer(), time.perf_counter()
    for place in range(0, len(sample), 1 << 20):
        packer.compress(sample[place : place + (1 << 20)])
    return (time.perf_counter() - start) * compressed_here(image, wheels, store) / len(sample)


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


def cold(bench: Bench, base: str) -> Iterator[dict[str, Any]]:
    """Everything from wheels on the disk: our image, that of pip, that of uv."""
    bandwidth = disk_bandwidth(bench.folder)
    mine, memory = bench.own("build", str(bench.recipe(0)))
    bench.prove(bench.reference(0))
    image = bench.image(0)
    packed, unpacked = (sum(getattr(layer.blob, name) for layer in image.layers[1:]) for name in ("size", "unpacked"))
    what = f"{unpacked / 1e9:.1f} GB in {len(image.layers)} layers"
    yield record("cold, memory", f"{what}: {memory / 1e6:.0f} MB in all processes", memory / 1e9, peer="none")
    wheels = locked_recipe(read_recipe(bench.recipe(0))).wheels
    seconds, cores = compression_seconds(image, wheels, bench.tools.store), len(os.sched_getaffinity(0))
    written = packed + 2 * unpacked  # the layers; the engine's copy of the archive, and the files
    limit = written / bandwidth + seconds / cores
    text = f"{mine:.0f} s against {limit:.0f} s: {written / 1e9:.1f} GB at {bandwidth / 1e6:.0f} MB/s, "
    text += f"{seconds:.0f} s of compression over {cores} cores"
    yield record("cold, limit", text, mine / limit, peer="disk and isal")
    for kind, peer, release in (
        ("pip", "docker build, pip install", pip_wheel().version),
        ("uv", "docker build, uv pip install --compile-bytecode", version("uv")),
    ):
        seconds = bench.peer(kind, base)
        bench.forget(f"{MARK}/{kind}")
        text = f"{what}: {mine:.0f} s against {seconds:.0f} s"
        yield record(f"cold, {kind}", text, mine / seconds, peer=peer, release=release)


def size(bench: Bench, toolkit: Path) -> Iterator[dict[str, Any]]:
    """How large our image is beside the naive one, with the compiler and the whole toolkit."""
    bench.own("build", str(bench.recipe(0)))
    devel = devel_image(bench, toolkit)
    bench.peer("pip", devel)
    own, naive = bench.size_of(bench.reference(0)), bench.size_of(f"{MARK}/pip:latest")
    for tag in (f"{MARK}/pip", devel):
        bench.forget(tag)
    text = f"{own / 1e9:.2f} GB against {naive / 1e9:.2f} GB"
    peer = "Debian's compiler, all wheels of the CUDA toolkit, cuDNN, NCCL, pip install"
    yield record("size", text, own / naive, peer=peer, release="CUDA 13.0.2")


def pin(bench: Bench, base: str, registry: str) -> Iterator[dict[str, Any]]:
    """One pin changed: the time until the image is ready, and the bytes that a push sends."""
    bench.own("build", str(bench.recipe(0)))
    repository = Repository(registry=registry, name="stack")
    with RegistryClient(bench.tools.settings) as client:
        push_image(bench.image(0), repository.at("0"), bench.tools.store, client)
        mine, _ = bench.own("build", str(bench.recipe(1)))
        bench.prove(bench.reference(1))
        sent = push_image(bench.image(1), repository.at("1"), bench.tools.store, client).sent
    [changed] = [layer.blob.size for layer in bench.image(1).layers if layer.title.startswith("transformers ")]
    text = f"{sent / 1e6:.2f} MB against {changed / 1e6:.2f} MB"
    yield record("pin pushed", text, sent / changed, peer="the compressed layer of transformers", release=PINS[1])
    pip = bench.peers.get("pip") or bench.peer("pip", base)
    bench.forget(f"{MARK}/pip")
    text, peer = f"transformers {PINS[0]} to {PINS[1]}: {mine:.1f} s against {pip:.0f} s", "docker build, pip install"
    yield record("pin changed", text, mine / pip, peer=peer, release=pip_wheel().version)


def four(bench: Bench, registry: str, data: Path) -> Iterator[dict[str, Any]]:
    """Four recipes that differ in one pin: what they take in the store, in the registry and in the engine."""
    for number in range(len(PINS)):
        bench.own("build", str(bench.recipe(number)))
    images = [bench.image(number) for number in range(len(PINS))]
    with RegistryClient(bench.tools.settings) as client:
        for number, image in enumerate(images):
            repository = Repository(registry=registry, name="stack")
            push_image(image, repository.at(str(number)), bench.tools.store, client)
    layers = {layer.blob.digest: layer.blob for image in images for layer in image.layers}
    chains = {
        chain: layer.blob
        for image in images
        for chain, layer in zip(chain_ids(image.layers), image.layers, strict=True)
    }
    one = [layer.blob for layer in images[0].layers]
    ratios = {
        "store": sum(blob.size for blob in layers.values()) / sum(blob.size for blob in one),
        "registry": sum(path.stat().st_size for path in data.rglob("data")) / sum(blob.size for blob in one),
        "engine": sum(blob.unpacked for blob in chains.values()) / sum(blob.unpacked for blob in one),
    }
    text = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
    yield record("four recipes", f"four versions of transformers: {text}", max(ratios.values()), peer="one of them")


def again(bench: Bench) -> Iterator[dict[str, Any]]:
    """Nothing changed: the whole road again."""
    bench.own("make", str(bench.recipe(0)))
    seconds = min(bench.own("make", str(bench.recipe(0)))[0] for _ in range(3))
    yield record("nothing changed", f"envbuild make, best of 3: {seconds:.2f} s", seconds, peer="none")


def measure(folder: Path, toolkit: Path | None, wanted: Collection[str]) -> Iterator[dict[str, Any]]:
    """Measure what is wanted, each once, in one run."""
    write_byte_code(folder)
    bench = Bench(folder=folder, tools=State().tools())
    try:
        prepare(bench, toolkit)
        base = bench.base(bench.recipe(0))
        if "cold" in wanted:
            yield from cold(bench, base)
        with docker_registry(folder / "registry") as registry:
            if "pin" in wanted:
                yield from pin(bench, base, registry)
            if "four" in wanted:
                yield from four(bench, registry, folder / "registry" / "data")
        if "again" in wanted:
            yield from again(bench)
        if "size" in wanted and toolkit:
            yield from size(bench, toolkit)
    finally:
        bench.clean()


def main() -> None:
    """Measure, print the ratios and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("toolkit", type=Path, nargs="?", help="the folder with the wheels of the CUDA toolkit")
    parser.add_argument("--only", action="append", choices=MEASUREMENTS, help="measure this alone (repeatable)")
    arguments = parser.parse_args()
    wanted = arguments.only or MEASUREMENTS
    toolkit = arguments.toolkit.resolve() if arguments.toolkit else None
    if arguments.only and "size" in wanted and toolkit is None:
        parser.error("the size is measured against the CUDA toolkit: give the folder with its wheels")
    with tempfile.TemporaryDirectory() as name:
        for each in measure(Path(name), toolkit, wanted):
            path = RESULTS / f"{each['name'].replace(': ', '-').replace(', ', '-').replace(' ', '-')}.json"
            path.write_text(json.dumps(each, indent=2) + "\n", encoding="utf-8")
            sys.stdout.write(f"{each['name']}: {each['ratio']} ({each['compared']}; {each['goal']}: {each['met']})\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
