"""Wheels to a running image: the base's Python compiles, the engine loads, and an installer makes the same files."""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
import tarfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from uv import find_uv_bin

from builder.build import layerplan, making
from builder.build.ahead import KIND, Ahead
from builder.build.image import ImageSettings, assemble, chain_ids, load_image, send_image, tar_bytes
from builder.build.layerplan import plan_layers
from builder.build.layers import LayerTerms, make_base_layer, make_layers
from builder.build.venv import PREFIX, Venv
from builder.build.wheelfile import read_layout
from builder.engine import ContainerRun, Mount
from builder.store import DamagedFileError, Store
from tests.docker.python_rootfs import system_python, write_rootfs
from tests.wheels import EXECUTABLE, make_wheel, member

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from builder.build.image import Image
    from builder.build.wheelfile import WheelInput
    from builder.dockerd.client import DockerEngine

pytestmark = pytest.mark.docker

EPOCH = 1_764_000_000
PATH = f"{PREFIX}/bin:/usr/bin:/bin"
SOURCE = b"""
CHOICES = frozenset({"a", "b", None})


def main() -> None:
    import sys

    print(sys.prefix, __spec__.cached)
"""
# uv as the reference: it installs into the same place in the same base, and the result comes out as a tar.
INSTALL = """
import subprocess, sys, tarfile
prefix, python, *wheels = sys.argv[1:]
subprocess.run(["/uv", "venv", "-q", "--no-project", "--no-cache", "--python", python, prefix], check=True)
command = ["/uv", "pip", "install", "-q", "--no-cache", "--offline", "--no-index", "--no-deps", "--link-mode", "copy"]
subprocess.run([*command, "--compile-bytecode", "--python", prefix + "/bin/python", *wheels], check=True)
with tarfile.open("/out/env.tar", "w") as archive:
    archive.add(prefix, prefix)
"""


LOOK = """
import bar, foo, hashlib, pathlib
print(hashlib.sha256((pathlib.Path(bar.__file__).parent / "binary" / "lib.so").read_bytes()).hexdigest())
"""


@dataclass(kw_only=True)
class Workshop:
    """A store with a base, and the engine; `make` gives an image that the engine has under `reference`."""

    store: Store
    engine: DockerEngine
    rootfs: str
    references: list[str] = field(default_factory=list)

    @property
    def venv(self) -> Venv:
        return Venv(python=system_python())

    def assemble(self, wheels: Iterable[WheelInput], ahead: Ahead | None = None) -> Image:
        base = make_base_layer(self.rootfs, store=self.store)
        layers = make_layers(
            plan_layers(read_layout(wheel, self.venv) for wheel in wheels),
            base=(base,),
            terms=LayerTerms(venv=self.venv, python=self.rootfs, epoch=EPOCH),
            engine=self.engine,
            store=self.store,
            on_progress=lambda _: None,
            ahead=ahead,
        )
        self.references.append(f"envbuild/base:{base.blob.diff_id.removeprefix('sha256:')[:16]}")
        return assemble((base, *layers), ImageSettings(epoch=EPOCH, environment={"PATH": PATH}))

    def load(self, image: Image) -> str:
        reference = f"envbuild-test/image:{uuid.uuid4().hex[:12]}"
        self.references.append(reference)
        load_image(image, reference, engine=self.engine, store=self.store)
        return reference


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rootfs") / "base.tar"
    write_rootfs(path, programs=[Path(find_uv_bin())])
    return path


@pytest.fixture
def workshop(tmp_path: Path, rootfs: Path, engine: DockerEngine) -> Iterator[Workshop]:
    made = new_workshop(tmp_path / "store", rootfs, engine)
    yield made
    for reference in made.references:
        engine.remove_image(reference)


def new_workshop(folder: Path, rootfs: Path, engine: DockerEngine) -> Workshop:
    store = Store(folder)
    with store.scratch() as scratch:
        copy = shutil.copy(rootfs, scratch / "base.tar")
        return Workshop(store=store, engine=engine, rootfs=store.add(Path(copy)))


def wheels(folder: Path) -> list[WheelInput]:
    everything = [
        (member("foo/__init__.py"), SOURCE),
        (member("foo/run.sh", EXECUTABLE), b"#!/bin/sh\n"),
        (member("foo/old.py"), b"print 'python 2'\n"),
        (member("foo-1.0.data/scripts/foo-script", EXECUTABLE), b"#!python\nprint('script')\n"),
        (member("foo-1.0.data/data/share/foo.txt"), b"text"),
        (member("foo-1.0.data/platlib/foo/native.so"), b"elf"),
        (member("foo-1.0.data/headers/foo.h"), b"int foo;"),
    ]
    return [
        make_wheel(folder, "foo", everything, entry_points="[console_scripts]\nfoo = foo:main\n"),
        make_wheel(folder, "bar", {"bar.py": b"x = 1\n"}),
    ]


def test_an_image_whose_left_out_layers_are_gone_is_sent_again_whole(tmp_path: Path, engine: DockerEngine) -> None:
    store, sent = Store(tmp_path), list[int]()
    texts = [tar_of(f"{uuid.uuid4()}") for _ in range(2)]
    image = assemble(
        tuple(make_base_layer(store.add_bytes(text), store=store) for text in texts), ImageSettings(epoch=1)
    )
    reference = f"envbuild-test/image:{uuid.uuid4().hex[:12]}"

    def counted(pieces: Iterator[bytes]) -> Iterator[bytes]:
        archive = b"".join(pieces)
        sent.append(len(archive))
        return iter([archive])

    gone = frozenset(chain_ids(image.layers)[:1])
    send_image(image, reference, engine=engine, store=store, present=gone, through=counted)
    try:
        assert engine.image_id(reference) == image.config_digest
        assert len(sent) == 2
        assert sent[1] - sent[0] > len(texts[0])
    finally:
        engine.remove_image(reference)


def tar_of(name: str) -> bytes:
    """Return a tar of one file."""
    return b"".join((*tar_bytes(name, name.encode()), bytes(2 * tarfile.BLOCKSIZE)))


def test_the_environment_of_the_image_runs_its_packages_from_byte_code(tmp_path: Path, workshop: Workshop) -> None:
    reference = workshop.load(workshop.assemble(wheels(tmp_path)))
    site, tag = workshop.venv.site_packages, workshop.venv.cache_tag
    ended = workshop.engine.run(ContainerRun(image=reference, command=("foo",)))
    assert ended.stdout.decode().split() == [PREFIX, f"{site}/foo/__pycache__/__init__.{tag}.pyc"], ended.stderr
    look = (
        f"import marshal; print(marshal.loads(open('{site}/__pycache__/bar.{tag}.pyc', 'rb').read()[16:]).co_filename)"
    )
    ended = workshop.engine.run(ContainerRun(image=reference, command=("python", "-c", look)))
    assert ended.stdout.decode().strip() == f"{site}/bar.py", ended.stderr
    ended = workshop.engine.run(ContainerRun(image=reference, command=("foo-script",)))
    assert (ended.code, ended.stdout) == (0, b"script\n"), ended.stderr


def test_two_stores_give_one_image(tmp_path: Path, workshop: Workshop, rootfs: Path) -> None:
    other = new_workshop(tmp_path / "other", rootfs, workshop.engine)
    given = wheels(tmp_path)
    one, two = workshop.assemble(given), other.assemble(given[::-1])
    assert (one.config_digest, one.manifest_digest) == (two.config_digest, two.manifest_digest)


def test_the_engine_takes_an_image_without_the_layers_that_it_has(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    foo, bar = wheels(tmp_path)
    workshop.load(workshop.assemble([foo, bar]))
    sent = spy_on_load(workshop.engine, monkeypatch)
    newer = make_wheel(tmp_path, "bar", {"bar.py": b"print('newer')\n"}, version="2.0")
    image = workshop.assemble([foo, newer])
    reference = workshop.load(image)
    named = json.loads(sent["manifest.json"])[0]["Layers"]
    assert (len(named), sum(name in sent for name in named)) == (len(image.layers), 1)
    ended = workshop.engine.run(ContainerRun(image=reference, command=("python", "-c", "import bar, foo")))
    assert (ended.code, ended.stdout) == (0, b"newer\n"), ended.stderr


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each wheel be sent ahead, in a layer of its own."""
    for module in (layerplan, making):
        monkeypatch.setattr(module, "LARGE", 1)
    monkeypatch.setattr(making, "AHEAD", 1)


@pytest.mark.usefixtures("small_is_large")
@pytest.mark.parametrize("stored", ["none", "all", "some"])
def test_the_engine_takes_layers_while_they_are_made_or_as_the_store_has_them(
    stored: str, tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = random.Random(1).randbytes(3 << 20)
    given = [*wheels(tmp_path), make_wheel(tmp_path, "binary", {"binary/lib.so": noise})]
    if stored != "none":
        made = workshop.assemble(given)
        if stored == "some":
            workshop.store.drop(made.layers[3].blob.digest.removeprefix("sha256:"))
    key = uuid.uuid4().hex * 2
    with Ahead(key, EPOCH, engine=workshop.engine, store=workshop.store) as ahead:
        image = workshop.assemble(given, ahead)
        assert set(chain_ids(image.layers)) <= workshop.engine.chain_ids()
        sent = spy_on_load(workshop.engine, monkeypatch)
        reference = workshop.load(image)
    assert {"manifest.json", "index.json"} < {*sent}
    assert not [name for name in sent if name.endswith(".tar")]
    assert workshop.engine.image_id(f"envbuild/ahead:{key[:16]}") is None
    assert [kind for kind, _ in workshop.store.results() if kind == KIND] == []
    ended = workshop.engine.run(ContainerRun(image=reference, command=("python", "-c", LOOK)))
    assert ended.stdout.decode().strip() == hashlib.sha256(noise).hexdigest(), ended.stderr


@pytest.mark.usefixtures("small_is_large")
def test_the_engine_keeps_nothing_of_a_layer_that_is_damaged_in_the_store(tmp_path: Path, workshop: Workshop) -> None:
    binary = make_wheel(tmp_path, "binary", {"binary/lib.so": random.randbytes(3 << 20)})
    image = workshop.assemble([*wheels(tmp_path), binary])
    broken = workshop.store.path(image.layers[2].blob.digest.removeprefix("sha256:"))
    data = bytearray(broken.read_bytes())
    data[len(data) // 2] ^= 1
    broken.write_bytes(data)
    key = uuid.uuid4().hex * 2
    with (
        Ahead(key, EPOCH, engine=workshop.engine, store=workshop.store) as ahead,
        pytest.raises(DamagedFileError, match=broken.name),
    ):
        workshop.assemble([*wheels(tmp_path), binary], ahead)
    assert workshop.engine.chain_ids().isdisjoint(chain_ids(image.layers)[2:])
    assert workshop.engine.image_id(f"envbuild/ahead:{key[:16]}") is None


def spy_on_load(engine: DockerEngine, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What the next archive for the engine has in it, by name."""
    sent: dict[str, bytes] = {}
    load = engine.load

    def spy(archive: Iterable[bytes]) -> None:
        data = b"".join(archive)
        with tarfile.open(fileobj=io.BytesIO(data)) as files:
            sent.update({item.name: file.read() for item in files if (file := files.extractfile(item))})
        load([data])

    monkeypatch.setattr(engine, "load", spy)
    return sent


def test_an_installer_makes_the_same_files(tmp_path: Path, workshop: Workshop) -> None:
    given = wheels(tmp_path)
    image = workshop.assemble(given)
    base = workshop.load(assemble(image.layers[:1], ImageSettings(epoch=EPOCH)))
    (tmp_path / "out").mkdir()
    names = [f"/wheels/{wheel.filename}" for wheel in given]
    ended = workshop.engine.run(
        ContainerRun(
            image=base,
            command=(workshop.venv.base_interpreter, "-c", INSTALL, PREFIX, workshop.venv.base_interpreter, *names),
            mounts=(
                Mount(source=Path(find_uv_bin()), target="/uv"),
                Mount(source=tmp_path / "out", target="/out", read_only=False),
                *(Mount(source=wheel.path, target=name) for wheel, name in zip(given, names, strict=True)),
            ),
            tmpfs=("/tmp",),
        )
    )
    assert ended.code == 0, ended.stderr.decode()
    expected = files_of([tmp_path / "out" / "env.tar"])
    seen = files_of([workshop.store.path(layer.blob.digest.removeprefix("sha256:")) for layer in image.layers[1:]])
    assert seen == expected


def files_of(layers: Iterable[Path]) -> dict[str, tuple[int, bytes]]:
    """The files of some tars, without what each installer writes in its own way; of byte code only the names."""
    own = ("INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_cache.json", "pyvenv.cfg", "bin/foo")
    by_uv = (".gitignore", ".lock", "CACHEDIR.TAG", "activate", "deactivate.bat", "pydoc.bat", "_virtualenv")
    found = {}
    for path in layers:
        with tarfile.open(path) as archive:
            for item in archive:
                if item.isreg() and not item.name.endswith(own) and not any(name in item.name for name in by_uv):
                    file = archive.extractfile(item)
                    assert file is not None
                    data = b"" if item.name.endswith(".pyc") else file.read()
                    found[item.name] = (item.mode & 0o111, data)
    return found
