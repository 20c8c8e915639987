"""How fast, how small and how much shared images are, against `docker build` with pip and with uv on the same wheels.

    python benchmarks/image.py [--only cold|pin|four|again|size]... [TOOLKIT]
    python benchmarks/image.py --recipe recipes/NAME.yaml [--only cold|pin]

Measured are the quickstart's packages, or a recipe of this project with its committed lock, whose compiled wheels must
be in the store. Needs a Docker engine, Debian's `docker-registry`, a network for the locks and the wheels that the
store lacks; for `cold` a store that has made no layer and no byte code yet. Disk, besides the wheels in the store: our
image takes its layers, the engine's copy of their files (one layer's after the other while they are made) and the files
themselves; it leaves the engine before the peers' come, which take those layers, an image of the wheels, and one image
at a time. 11 GB were seen for the quickstart, at most 32 GB are needed for sm120-glm5-cu130 (6 of layers, 12 of
files), about 25 while the peers are built. The size is measured if a folder with the wheels of the
whole CUDA toolkit is given, for 15 GB more
(`pip download "cuda-toolkit[all]==13.0.2" nvidia-cudnn-cu13==9.19.0.56 nvidia-nccl-cu13==2.28.9`).

What is timed uses no network. The peers read the same wheels from a local image through a bind mount, have the same
base and environment, and make byte code as the assembled image has it, also that of packages' tests, which it leaves
out (pip and uv compile everything). They are favoured: their context is empty, apt's step is done before, and pip
leaves no cache in the image, as it would of wheels that come from an index.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byte_code import write_byte_code
from image_bench import Bench
from image_limit import compression_seconds, disk_bandwidth
from image_peers import COMMANDS, DEVEL, build_devel, build_peer, import_wheels, pip_wheel
from image_records import record, write_record
from image_stack import MARK, prepare, project_stack, quickstart_in

from builder.build.image import chain_ids
from builder.build.published import push_image
from builder.commands.state import State
from builder.registry.client import RegistryClient
from builder.registry.reference import Repository
from tests.docker.docker_registry import docker_registry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from builder.build.image import Image
    from builder.store import Store

COPIES = {"cold": 1, "pin": 2, "four": 4, "again": 1, "size": 1}  # of the recipe, for each measurement
OF_RECIPES = ("cold", "pin")  # what is measured of a recipe of the project
MADE = {"bytecode", "layer"}  # the records of a store that make an image less than cold


def refuse_warm(store: Store) -> None:
    """End the process where the store has made something already that `cold` shall make."""
    if MADE.intersection(kind for kind, _ in store.results()):
        sys.exit(
            f"{store.root} has made layers or byte code before: set ENVBUILD_STORE to a new folder for `cold`; "
            "its `files` can be hard links to those of a store, its `results/wheel` copies"
        )


def refuse_known(image: Image, before: Collection[str], most: int) -> None:
    """End the process where the engine had layers of the image before, of more than so many bytes."""
    chains = zip(chain_ids(image.layers), image.layers, strict=True)
    known = sum(layer.blob.unpacked for chain, layer in list(chains)[1:] if chain in before)
    if known > most:
        sys.exit(f"the engine had {known / 1e9:.1f} GB of the image's layers before: remove the images that hold them")


def shown(image: Image) -> str:
    """Say how large an image is without its base, in how many layers."""
    return f"{sum(layer.blob.unpacked for layer in image.layers[1:]) / 1e9:.1f} GB in {len(image.layers)} layers"


def cold(bench: Bench) -> Iterator[dict[str, Any]]:
    """Everything from wheels on the disk: the time and the memory of our image."""
    bandwidth, before = disk_bandwidth(bench.folder), bench.tools.engine.chain_ids()
    bench.read_wheels()
    mine, memory = bench.own("build", 0)
    bench.prove(bench.stack.reference(0))
    image = bench.image(0)
    packed, unpacked = (sum(getattr(layer.blob, name) for layer in image.layers[1:]) for name in ("size", "unpacked"))
    refuse_known(image, before, unpacked // 100)
    bench.ours["cold"] = mine
    text = f"{shown(image)}: {memory / 1e6:.0f} MB in all processes"
    yield record("cold, memory", text, memory / 1e9, peer="none")
    seconds, cores = compression_seconds(image, bench.plan(0), bench.tools.store), len(os.sched_getaffinity(0))
    written = packed + 2 * unpacked  # the layers; the engine's copy of the archive, and the files
    limit = written / bandwidth + seconds / cores
    text = f"{mine:.0f} s against {limit:.0f} s: {written / 1e9:.1f} GB at {bandwidth / 1e6:.0f} MB/s, "
    text += f"{seconds:.0f} s of compression over {cores} cores"
    yield record("cold, limit", text, mine / limit, peer="disk and isal")


def pin(bench: Bench, registry: str) -> Iterator[dict[str, Any]]:
    """One pin changed: the time until the image is ready, and the bytes that a push sends."""
    bench.own("build", 0)
    repository = Repository(registry=registry, name="stack")
    with RegistryClient(bench.tools.settings) as client:
        push_image(bench.image(0), repository.at("0"), bench.tools.store, client)
        bench.ours["pin"], _ = bench.own("build", 1)
        bench.prove(bench.stack.reference(1))
        sent = push_image(bench.image(1), repository.at("1"), bench.tools.store, client).sent
    [changed] = [layer.blob.size for layer in bench.image(1).layers if layer.title.startswith("transformers ")]
    text = f"{sent / 1e6:.2f} MB against {changed / 1e6:.2f} MB"
    release = bench.stack.pins[1]
    yield record("pin pushed", text, sent / changed, peer="the compressed layer of transformers", release=release)


def four(bench: Bench, registry: str, data: Path) -> Iterator[dict[str, Any]]:
    """Four recipes that differ in one pin: what they take in the store, in the registry and in the engine."""
    pins = bench.stack.pins
    for number in range(len(pins)):
        bench.own("build", number)
    images = [bench.image(number) for number in range(len(pins))]
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
    bench.own("make", 0)
    seconds = min(bench.own("make", 0)[0] for _ in range(3))
    yield record("nothing changed", f"envbuild make, best of 3: {seconds:.2f} s", seconds, peer="none")


def peers(bench: Bench, base: str) -> Iterator[dict[str, Any]]:
    """What was timed of ours, with `docker build`: one image of a peer at a time, each removed before the next."""
    mine, pinned = bench.ours.get("cold"), bench.ours.get("pin")
    releases = {"pip": pip_wheel(bench).version, "uv": version("uv")}
    for kind in releases if mine else ["pip"] if pinned else []:
        peer, release = COMMANDS[kind], releases[kind]
        seconds = build_peer(bench, kind, base)
        bench.forget(f"{MARK}/{kind}")
        if mine:
            text = f"{shown(bench.image(0))}: {mine:.0f} s against {seconds:.0f} s"
            yield record(f"cold, {kind}", text, mine / seconds, peer=peer, release=release)
        if pinned and kind == "pip":
            old, new = bench.stack.pins[:2]
            text = f"transformers {old} to {new}: {pinned:.1f} s against {seconds:.0f} s"
            yield record("pin changed", text, pinned / seconds, peer=peer, release=release)


def size(bench: Bench, toolkit: Path) -> Iterator[dict[str, Any]]:
    """How large our image is beside the naive one, with the compiler and the whole toolkit."""
    build_devel(bench, toolkit)
    build_peer(bench, "pip", DEVEL)
    own, naive = bench.ours["size"], bench.size_of(f"{MARK}/pip:latest")
    text = f"{own / 1e9:.2f} GB against {naive / 1e9:.2f} GB"
    peer = "Debian's compiler, all wheels of the CUDA toolkit, cuDNN, NCCL, pip install"
    yield record("size", text, own / naive, peer=peer, release="CUDA 13.0.2")


def measure(bench: Bench, toolkit: Path | None, wanted: Collection[str]) -> Iterator[dict[str, Any]]:
    """Measure what is wanted, each once, in one run: ours, then the peers'; the size where there is a toolkit."""
    prepare(bench.stack, max(COPIES[each] for each in wanted), bench.tools)
    try:
        base = bench.base(0)
        if "cold" in wanted:
            yield from cold(bench)
        with tempfile.TemporaryDirectory(dir=bench.folder) as data, docker_registry(Path(data)) as registry:
            if "pin" in wanted:
                yield from pin(bench, registry)
            if "four" in wanted:
                yield from four(bench, registry, Path(data))
        if "again" in wanted:
            yield from again(bench)
        if toolkit:
            bench.own("build", 0)
            bench.ours["size"] = bench.size_of(bench.stack.reference(0))
        bench.clean()
        if bench.ours:
            import_wheels(bench, toolkit)
            yield from peers(bench, base)
        if toolkit:
            yield from size(bench, toolkit)
    finally:
        bench.clean()


def main() -> None:
    """Measure, print the ratios and write the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("toolkit", type=Path, nargs="?", help="the folder with the wheels of the CUDA toolkit")
    parser.add_argument("--recipe", type=Path, help="measure this recipe of the project in the quickstart's place")
    parser.add_argument("--only", action="append", choices=COPIES, help="measure this alone (repeatable)")
    arguments = parser.parse_args()
    recipe, wanted = arguments.recipe, arguments.only or (OF_RECIPES if arguments.recipe else COPIES)
    toolkit = arguments.toolkit.resolve() if arguments.toolkit and "size" in wanted else None
    if arguments.only and "size" in wanted and toolkit is None:
        parser.error("the size is measured against the CUDA toolkit: give the folder with its wheels")
    if recipe and not {*wanted} <= {*OF_RECIPES}:
        parser.error(f"of a recipe only {' and '.join(OF_RECIPES)} are measured")
    with tempfile.TemporaryDirectory() as name:
        folder, tools = Path(name), State().tools()
        if "cold" in wanted:
            refuse_warm(tools.store)
        write_byte_code(folder)
        stack = project_stack(recipe, folder) if recipe else quickstart_in(folder)
        engine = tools.engine.facts()
        store = f"Engine {engine.version.split('+')[0]}, containerd image store" if engine.containerd else ""
        for each in measure(Bench(stack=stack, tools=tools), toolkit, wanted):
            write_record(each, stack.source.recipe.name if recipe else "", store)


if __name__ == "__main__":
    main()
