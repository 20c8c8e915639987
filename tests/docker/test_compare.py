"""What a real engine says of images, and what is found inside them."""

from __future__ import annotations

import io
import uuid
from typing import TYPE_CHECKING

import pytest

from builder.build.image import ImageSettings, Layer, assemble, load_image
from builder.build.layers import make_base_layer
from builder.build.tarlayer import File, Link, write_layer
from builder.compare.comparison import compare
from builder.compare.operands import read_operand
from builder.console import Console
from builder.errors import UsageError
from builder.settings import settings_from
from builder.store import Store
from builder.tools import Tools
from tests.docker.python_rootfs import system_python, write_rootfs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.build.tarlayer import Entry
    from builder.dockerd.client import DockerEngine

pytestmark = pytest.mark.docker

STATUS = b"Package: libc6\nStatus: install ok installed\nInstalled-Size: 3\nVersion: 2.41\n"


@pytest.fixture
def tools(engine: DockerEngine, tmp_path: Path) -> Tools:
    return Tools(
        settings=settings_from({}),
        store=Store(tmp_path / "store"),
        console=Console(out=io.StringIO()),
        connect=lambda: engine,
    )


@pytest.fixture
def images(engine: DockerEngine, tools: Tools, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Two images on one base with Python: they differ in a distribution, a Debian package and a variable."""
    write_rootfs(tmp_path / "rootfs.tar")
    base = make_base_layer(tools.store.add(tmp_path / "rootfs.tar"), store=tools.store)
    status = File(path="/var/lib/dpkg/status", size=len(STATUS), content=STATUS)
    references = []
    for number, entries in enumerate(([*distribution("1.0"), status], distribution("1.1"))):
        reference = f"envbuild-test/compare:{uuid.uuid4().hex[:12]}"
        settings = ImageSettings(epoch=0, environment={"PATH": "/usr/bin", "N": str(number)}, labels={"same": "yes"})
        layer = made_layer(entries, f"demo {number}", tools.store, tmp_path)
        load_image(assemble((base, layer), settings), reference, engine=engine, store=tools.store)
        references.append(reference)
    yield references[0], references[1]
    for reference in references:
        engine.remove_image(reference)


def distribution(version: str) -> list[Entry]:
    """A distribution's metadata beside the standard library, and the name that the interpreter is called by."""
    python = f"python{system_python()}"
    info = f"/usr/lib/{python}/demo-{version}.dist-info"
    texts = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: Demo\nVersion: {version}\n",
        f"{info}/RECORD": f"demo.py,sha256=x,{40 if version == '1.0' else 60}\n",
    }
    files = [File(path=path, size=len(text), content=text.encode()) for path, text in texts.items()]
    return [*files, Link(path="/usr/bin/python3", target=python)]


def made_layer(entries: list[Entry], title: str, store: Store, folder: Path) -> Layer:
    with (folder / "layer").open("wb") as out:
        blob = write_layer(entries, epoch=0, out=out)
    store.add(folder / "layer", blob.digest.removeprefix("sha256:"))
    return Layer(title=title, blob=blob)


def test_two_images_of_one_base_differ_in_what_was_put_on_it(images: tuple[str, str], tools: Tools) -> None:
    a, b = (read_operand(name, tools) for name in images)
    comparison = compare(a, b)
    assert [change.line for change in comparison.packages or ()] == ["debian: - libc6 2.41", "python: demo 1.0 -> 1.1"]
    [demo] = [change for change in comparison.packages or () if change.name == "demo"]
    assert demo.before is not None
    assert demo.after is not None
    assert (demo.before.bytes, demo.after.bytes) == (40, 60)
    seen = comparison.images
    assert seen is not None
    assert [layer.title for layer in seen.shared] == ["base"]
    assert (seen.shared[0].bytes or 0) > 1_000_000
    assert [layer.title for layer in (*seen.only_a, *seen.only_b)] == ["demo 0", "demo 1"]
    assert [(change.name, change.a, change.b) for change in seen.settings] == [("N", "0", "1")]


def test_an_image_does_not_differ_from_itself(images: tuple[str, str], tools: Tools) -> None:
    assert compare(read_operand(images[0], tools), read_operand(images[0], tools)).same


def test_an_image_without_python_still_shows_its_layers(tiny_image: str, tools: Tools) -> None:
    comparison = compare(read_operand(tiny_image, tools), read_operand(tiny_image, tools))
    assert comparison.packages is None
    assert comparison.silence is not None
    assert "python3" in comparison.silence
    assert comparison.images is not None
    assert len(comparison.images.shared) == 1


def test_an_image_that_the_engine_does_not_have_is_refused_and_not_pulled(tools: Tools) -> None:
    with pytest.raises(UsageError, match="envbuild-test/nowhere:1 is no file, no folder and no image"):
        read_operand("envbuild-test/nowhere:1", tools)
