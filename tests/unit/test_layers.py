"""Layers are made once, each from its own inputs, and are the same from two stores."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import marshal
import os
import random
import shutil
import tarfile
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

import pytest

from builder.build import compile_inside, layerplan, making
from builder.build.ahead import Ahead
from builder.build.bytecode import byte_code_key, compile_wheels
from builder.build.image import chain_ids
from builder.build.layerplan import LayerPlan, plan_layers
from builder.build.layers import (
    LayerTerms,
    base_reference,
    layer_key,
    make_base_layer,
    make_layers,
)
from builder.build.making import entries_of
from builder.build.owners import settle_owners
from builder.build.tarlayer import Link
from builder.build.venv import Venv
from builder.build.wheelfile import read_layout
from builder.engine import Exit, chain_of
from builder.errors import BuildFailedError
from builder.giveup import keep_on
from builder.lock.target import Target
from builder.registry.share import NO_SHARE, open_share
from builder.settings import settings_from
from builder.store import DamagedFileError, DiskFullError, Store
from tests.fake_registry import FakeRegistry, running
from tests.fakes import FakeEngine
from tests.small_disk import enlarge, small_disk
from tests.wheels import make_wheel, record_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from builder.build.compression import CompressionName
    from builder.build.image import Layer
    from builder.build.wheelfile import WheelLayout
    from builder.engine import ContainerRun
    from builder.registry.share import Sharing

VENV = Venv(python="3.13")
SITE = "opt/env/lib/python3.13/site-packages"
EPOCH = 1_764_000_000


@dataclasses.dataclass(kw_only=True)
class CompilingEngine(FakeEngine):
    """Compiles with this interpreter what a container would compile with the base's; keeps all layers."""

    patch: pytest.MonkeyPatch

    def load(self, archive: Iterable[bytes]) -> None:
        super().load(archive)
        with tarfile.open(fileobj=io.BytesIO(self.loaded[-1])) as files:
            [entry] = json.loads(files.extractfile("manifest.json").read())  # type: ignore[union-attr]
            config = files.extractfile(entry["Config"]).read()  # type: ignore[union-attr]
        self.images[entry["RepoTags"][0]] = f"sha256:{hashlib.sha256(config).hexdigest()}"
        self.chains |= {*chain_of(json.loads(config)["rootfs"]["diff_ids"])}

    def run(self, job: ContainerRun, on_line: Callable[[str], None] | None = None) -> Exit:
        mounts = {mount.target: mount.source for mount in job.mounts}
        wheels = mounts["/jobs"].parent / "wheels"
        wheels.mkdir()
        for target, source in mounts.items():
            if target.startswith("/wheels/"):
                (wheels / target.removeprefix("/wheels/")).symlink_to(source)
        for name, path in {"WHEELS": wheels, "JOBS": mounts["/jobs"], "RESULTS": mounts["/results"]}.items():
            self.patch.setattr(compile_inside, name, path)
        for wheel in wheels.iterdir():
            for first in compile_inside.parts_of(wheel.name):
                compile_inside.compile_part(wheel.name, first)
            compile_inside.join_parts(wheel.name)
        return super().run(job, on_line)


@dataclasses.dataclass(kw_only=True)
class World:
    """A store with a base, an engine, and what was said while layers were made."""

    store: Store
    engine: CompilingEngine
    base: Layer
    said: list[str] = dataclasses.field(default_factory=list)

    def make(
        self,
        layouts: Iterable[WheelLayout],
        *,
        epoch: int = EPOCH,
        share: Sharing = NO_SHARE,
        ahead: Ahead | None = None,
    ) -> tuple[Layer, ...]:
        return make_layers(
            plan_layers(layouts),
            base=(self.base,),
            terms=terms(python="3.13.5-2", epoch=epoch),
            engine=self.engine,
            store=self.store,
            on_progress=self.said.append,
            share=share,
            ahead=ahead,
        )

    def have(self, layers: tuple[Layer, ...]) -> None:
        """Let the engine have these layers and no others."""
        self.engine.images.clear()
        self.engine.chains = frozenset(chain_ids(layers))

    def lose(self, layer: Layer) -> None:
        """Remove a layer's file from the store."""
        self.store.drop(layer.blob.digest.removeprefix("sha256:"))

    def members(self, layer: Layer) -> dict[str, tarfile.TarInfo]:
        with tarfile.open(self.store.path(layer.blob.digest.removeprefix("sha256:"))) as archive:
            return {member.name: member for member in archive}

    def read(self, layer: Layer, name: str) -> bytes:
        with tarfile.open(self.store.path(layer.blob.digest.removeprefix("sha256:"))) as archive:
            file = archive.extractfile(name)
            assert file is not None
            return file.read()


@pytest.fixture
def new_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], World]:
    def make(name: str) -> World:
        store = Store(tmp_path / name)
        base = make_base_layer(store.add_bytes(b"the tar of a root filesystem"), store=store)
        return World(store=store, engine=CompilingEngine(patch=monkeypatch), base=base)

    return make


@pytest.fixture
def world(new_world: Callable[[str], World]) -> World:
    return new_world("store")


def terms(*, venv: Venv = VENV, python: str = "x", epoch: int = 1, compression: CompressionName = "gzip") -> LayerTerms:
    return LayerTerms(venv=venv, python=python, epoch=epoch, compression=compression)


def layout(folder: Path, name: str = "foo", source: bytes = b"x = {None, 'a', 'b'}\n") -> WheelLayout:
    return read_layout(make_wheel(folder, name, {f"{name}/__init__.py": source, f"{name}/data": b"1"}), VENV)


def binary_layout(folder: Path) -> WheelLayout:
    return read_layout(make_wheel(folder, "binary", {"binary/lib.so": b"elf"}), VENV)


def broken_layout(folder: Path) -> WheelLayout:
    """Return a wheel whose only file is damaged."""
    wheel = make_wheel(folder, "broken", {"broken.bin": b"hello"})
    data = bytearray(wheel.path.read_bytes())
    data[30 + len("broken.bin") + 1] ^= 1  # the first letter, behind the member's header
    wheel.path.write_bytes(data)
    return read_layout(wheel, VENV)


def test_the_environment_layer_is_what_makes_the_interpreter_see_its_packages(world: World) -> None:
    [layer] = world.make([])
    found = world.members(layer)
    assert list(found) == [
        "opt",
        "opt/env",
        "opt/env/bin",
        "opt/env/bin/python",
        "opt/env/bin/python3",
        "opt/env/bin/python3.13",
        "opt/env/lib",
        "opt/env/lib/python3.13",
        SITE,
        "opt/env/pyvenv.cfg",
    ]
    assert found["opt/env/bin/python"].linkname == "/usr/bin/python3.13"
    assert world.read(layer, "opt/env/pyvenv.cfg") == b"home = /usr/bin\ninclude-system-site-packages = false\n"


def test_a_layer_holds_files_byte_code_and_a_record_of_both(tmp_path: Path, world: World) -> None:
    layer = world.make([layout(tmp_path)])[1]
    found = world.members(layer)
    assert [name for name, member in found.items() if member.isfile()] == [
        f"{SITE}/foo-1.0.dist-info/INSTALLER",
        f"{SITE}/foo-1.0.dist-info/METADATA",
        f"{SITE}/foo-1.0.dist-info/RECORD",
        f"{SITE}/foo-1.0.dist-info/WHEEL",
        f"{SITE}/foo/__init__.py",
        f"{SITE}/foo/__pycache__/__init__.cpython-313.pyc",
        f"{SITE}/foo/data",
    ]
    assert b"\nfoo/__pycache__/__init__.cpython-313.pyc,,\n" in world.read(layer, f"{SITE}/foo-1.0.dist-info/RECORD")
    assert world.read(layer, f"{SITE}/foo/data") == b"1"


def test_byte_code_is_never_checked_and_names_the_path_in_the_image(tmp_path: Path, world: World) -> None:
    layer = world.make([layout(tmp_path)])[1]
    data = world.read(layer, f"{SITE}/foo/__pycache__/__init__.cpython-313.pyc")
    assert int.from_bytes(data[4:8], "little") == 1, "hash-based, unchecked (PEP 552)"
    code = marshal.loads(data[16:])
    assert isinstance(code, CodeType)
    assert code.co_filename == f"/{SITE}/foo/__init__.py"


def test_a_file_that_does_not_compile_has_no_byte_code(tmp_path: Path, world: World) -> None:
    files = {"good.py": b"", "python2.py": b"print 1\n", "nul.py": b"\0", "latin.py": b"x = '\xe9'\n"}
    layer = world.make([read_layout(make_wheel(tmp_path, "foo", files), VENV)])[1]
    compiled = [name for name in world.members(layer) if "__pycache__/" in name]
    assert compiled == [f"{SITE}/__pycache__/good.cpython-313.pyc"]


def test_the_tests_of_a_package_are_in_its_layer_without_byte_code(tmp_path: Path, world: World) -> None:
    files = {"foo/__init__.py": b"", "foo/tests/__init__.py": b"", "foo/tests/test_foo.py": b"x = 1\n"}
    layer = world.make([read_layout(make_wheel(tmp_path, "foo", files), VENV)])[1]
    found = {name for name, member in world.members(layer).items() if member.isfile() and ".dist-info/" not in name}
    own = {*files, "foo/__pycache__/__init__.cpython-313.pyc"}
    assert found == {f"{SITE}/{name}" for name in own}
    rows = world.read(layer, f"{SITE}/foo-1.0.dist-info/RECORD").decode().splitlines()
    assert {name for name in (row.split(",")[0] for row in rows) if ".dist-info/" not in name} == own


def test_a_large_wheel_is_compiled_in_parts_of_one_size(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(compile_inside, "PART", 3)
    join = compile_inside.join_parts

    def joined(wheel: str) -> None:
        parts = [compile_inside.part_file(wheel, first) for first in compile_inside.parts_of(wheel)]
        sizes.extend(len(marshal.loads(part.read_bytes())) for part in parts)
        join(wheel)

    monkeypatch.setattr(compile_inside, "join_parts", joined)
    names = [f"m{number}.py" for number in range(8)]
    files = {name: f"x = {name!r}\n".encode() for name in names}
    layer = world.make([read_layout(make_wheel(tmp_path, "foo", files), VENV)])[1]
    assert sizes == [3, 3, 2]
    compiled = [name for name in world.members(layer) if "__pycache__/" in name]
    assert compiled == [f"{SITE}/__pycache__/m{number}.cpython-313.pyc" for number in range(8)]
    code = marshal.loads(world.read(layer, compiled[7])[16:])
    assert code.co_consts[0] == "m7.py"


def test_two_stores_give_the_same_layers(tmp_path: Path, new_world: Callable[[str], World]) -> None:
    layouts = [layout(tmp_path), layout(tmp_path, "bar"), binary_layout(tmp_path)]
    assert new_world("one").make(layouts) == new_world("two").make(layouts[::-1])


def test_nothing_is_made_twice(tmp_path: Path, world: World) -> None:
    first = world.make([layout(tmp_path)])
    world.said.clear()
    assert world.make([layout(tmp_path)]) == first
    assert (len(world.engine.runs), world.said) == (1, [])


class Recorder(Ahead):
    """Notes what it is asked to send; with `holds` it does so until it is closed."""

    def __init__(self, world: World, *, holds: bool = False) -> None:
        super().__init__("a" * 64, EPOCH, engine=world.engine, store=world.store)
        self.holds = holds
        self.below: tuple[Layer, ...] = ()
        self.count = 0
        self.sent: list[int] = []
        self.closed = threading.Event()

    def begin(self, below: tuple[Layer, ...], count: int) -> None:
        self.below, self.count = below, count

    def send(self, number: int, size: int, pieces: Iterator[bytes], finished: Callable[[], Layer]) -> None:
        tar = b"".join(pieces)
        blob = finished().blob
        assert (len(tar), f"sha256:{hashlib.sha256(tar).hexdigest()}") == (size, blob.diff_id)
        self.sent.append(number)
        assert not self.holds or self.closed.wait(60)

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small wheels be sent ahead, each in a layer of its own."""
    monkeypatch.setattr(making, "AHEAD", 1)
    monkeypatch.setattr(making, "LARGE", 1)
    monkeypatch.setattr(layerplan, "LARGE", 1)


@pytest.mark.usefixtures("small_is_large")
def test_layers_are_sent_upon_what_was_there_before(tmp_path: Path, world: World) -> None:
    ahead = Recorder(world)
    first = world.make([binary_layout(tmp_path)], ahead=ahead)
    assert (ahead.below, ahead.count, sorted(ahead.sent)) == ((world.base,), 2, [1, 2])
    assert world.engine.image_id(base_reference((world.base,))), "without it nothing can be sent upon it"
    world.have((world.base, *first))
    ahead = Recorder(world)
    world.make([binary_layout(tmp_path), layout(tmp_path)], ahead=ahead)
    assert (ahead.below, ahead.count, ahead.sent) == ((world.base, *first), 1, [3])


@pytest.mark.usefixtures("small_is_large")
def test_what_the_store_has_and_the_engine_lacks_is_sent_as_it_is(tmp_path: Path, world: World) -> None:
    layouts = [binary_layout(tmp_path), layout(tmp_path), layout(tmp_path, "bar")]
    made = world.make(layouts)
    world.have(())
    world.engine.runs.clear()
    ahead = Recorder(world)
    assert world.make(layouts, ahead=ahead) == made
    assert (ahead.below, ahead.count, sorted(ahead.sent)) == ((world.base,), 4, [1, 2, 3, 4])
    assert world.engine.runs == [], "nothing was made"


@pytest.mark.usefixtures("small_is_large")
def test_no_layer_that_the_engine_has_is_sent_though_the_store_lost_it(tmp_path: Path, world: World) -> None:
    layouts = [binary_layout(tmp_path), layout(tmp_path)]
    made = world.make(layouts)
    world.have((world.base, *made))
    world.lose(made[1])
    ahead = Recorder(world)
    assert world.make(layouts, ahead=ahead) == made
    assert (ahead.below, ahead.count) == ((world.base, *made), 0)


@pytest.mark.usefixtures("small_is_large")
def test_nothing_is_sent_upon_a_base_that_another_process_removes_meanwhile(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.make([binary_layout(tmp_path)])
    monkeypatch.setattr(world.engine, "chain_ids", frozenset)
    ahead = Recorder(world)
    world.make([binary_layout(tmp_path), layout(tmp_path)], ahead=ahead)
    assert (ahead.below, ahead.sent) == ((), [3]), "what is made is offered, what is stored is not even read"


@pytest.mark.usefixtures("small_is_large")
def test_a_damaged_layer_of_the_store_is_named_and_the_engine_gets_no_whole_archive_of_it(
    tmp_path: Path, world: World
) -> None:
    layouts = [binary_layout(tmp_path), layout(tmp_path)]
    made = world.make(layouts)
    broken = world.store.path(made[1].blob.digest.removeprefix("sha256:"))
    data = bytearray(broken.read_bytes())
    data[-1] ^= 1
    broken.write_bytes(data)
    world.have((world.base,))
    with (
        Ahead("a" * 64, EPOCH, engine=world.engine, store=world.store) as ahead,
        pytest.raises(DamagedFileError, match="is damaged: its bytes have the sha256") as raised,
    ):
        world.make(layouts, ahead=ahead)
    assert raised.value.sha256 == broken.name
    assert world.engine.chains <= {*chain_ids((world.base, *made))[:2]}, "the base and what lies below"
    world.store.drop(raised.value.sha256)
    assert world.make(layouts) == made


@pytest.mark.usefixtures("small_is_large")
def test_what_another_build_makes_meanwhile_is_sent_as_the_store_has_it(
    tmp_path: Path, world: World, new_world: Callable[[str], World]
) -> None:
    [*_, layer] = new_world("other").make([binary_layout(tmp_path)])
    there = new_world("other").store.path(layer.blob.digest.removeprefix("sha256:"))
    [_, plan] = plan_layers([binary_layout(tmp_path)])
    key, waiting = layer_key(plan, terms(python="3.13.5-2", epoch=EPOCH)), threading.Event()
    world.store = Store(world.store.root, lambda _: waiting.set())
    ahead = Recorder(world)
    with ThreadPoolExecutor() as pool:
        with world.store.exclusive(f"layer-{key}"):
            building = pool.submit(world.make, [binary_layout(tmp_path)], ahead=ahead)
            assert waiting.wait(60)
            making.keep_layer(key, layer.blob, Path(shutil.copy(there, tmp_path)), world.store)
        assert building.result(60)[-1] == layer
    assert sorted(ahead.sent) == [1, 2]


@pytest.mark.usefixtures("small_is_large")
def test_what_is_made_and_what_is_stored_goes_to_the_engine_alike(tmp_path: Path, world: World) -> None:
    layouts = [binary_layout(tmp_path), layout(tmp_path), layout(tmp_path, "bar")]
    made = world.make(layouts)
    for number in (0, 3):
        world.lose(made[number])
    world.said.clear()
    world.have(())
    ahead = Recorder(world)
    assert world.make(layouts, ahead=ahead) == made
    assert (ahead.below, ahead.count, sorted(ahead.sent)) == ((world.base,), 4, [1, 2, 3, 4])
    assert len(world.said) == 4


def test_a_small_build_sends_nothing(tmp_path: Path, world: World) -> None:
    ahead = Recorder(world)
    world.make([layout(tmp_path)], ahead=ahead)
    assert (ahead.below, ahead.count) == ((), 0)
    with Ahead("a" * 64, EPOCH, engine=world.engine, store=world.store) as real:
        world.make([layout(tmp_path, "bar")], ahead=real)
    assert len(world.engine.loaded) == 1, "the base that compiles, and no layer"


def test_wheels_without_python_files_do_not_wait_for_byte_code(tmp_path: Path, world: World) -> None:
    made = threading.Event()

    class Noticing(Recorder):
        def send(self, number: int, size: int, pieces: Iterator[bytes], finished: Callable[[], Layer]) -> None:
            super().send(number, size, pieces, finished)
            made.set()

    world.engine.answer = lambda _: Exit(code=0 if made.wait(60) else 1)
    world.make([binary_layout(tmp_path), layout(tmp_path)], ahead=Noticing(world))


@pytest.mark.usefixtures("small_is_large")
def test_a_layer_waits_for_no_byte_code_but_its_own(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    foo, bar, made, run = layout(tmp_path), layout(tmp_path, "bar"), threading.Event(), world.engine.run

    class Noticing(Recorder):
        def send(self, number: int, size: int, pieces: Iterator[bytes], finished: Callable[[], Layer]) -> None:
            super().send(number, size, pieces, finished)
            if finished().title == "foo 1.0":
                made.set()

    def slow(job: ContainerRun, on_line: Callable[[str], None] | None = None) -> Exit:
        ended = run(job, on_line)
        assert on_line is not None
        on_line(f"compiled {foo.wheel.sha256}")
        assert made.wait(60), "only the byte code of bar is not told yet"
        return ended

    monkeypatch.setattr(world.engine, "run", slow)
    assert len(world.make([foo, bar], ahead=Noticing(world))) == 3
    assert [text for text in world.said if text.startswith("byte")] == [
        "byte code of foo (1 of 2)",
        "byte code of bar (2 of 2)",
    ]


def test_a_wheel_with_a_damaged_member_is_not_the_bases_fault(tmp_path: Path, world: World) -> None:
    said = b"Traceback (most recent call last):\nzipfile.BadZipFile: Bad CRC-32 for file 'foo/x.py'\n"
    world.engine.answer = lambda _: Exit(code=1, stderr=said)
    with pytest.raises(BuildFailedError, match=r"one of these wheels is broken: foo-1\.0") as caught:
        world.make([layout(tmp_path)])
    assert caught.value.evidence == ("zipfile.BadZipFile: Bad CRC-32 for file 'foo/x.py'",)
    assert "take another release" in caught.value.remedy


def test_byte_code_that_fails_frees_what_is_held_back(tmp_path: Path, world: World) -> None:
    ahead = Recorder(world, holds=True)
    world.engine.answer = lambda _: Exit(code=1, stderr=b"no such program")
    with pytest.raises(BuildFailedError, match="could not compile"):
        world.make([binary_layout(tmp_path), layout(tmp_path)], ahead=ahead)
    assert ahead.closed.is_set()


def test_after_a_failure_no_layer_that_waited_is_begun(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    class Holding(Recorder):
        def send(self, number: int, size: int, pieces: Iterator[bytes], finished: Callable[[], Layer]) -> None:
            assert self.closed.wait(60), "the only core is held meanwhile"
            super().send(number, size, pieces, finished)

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(making, "prove_wheels", lambda layouts, _: begun.append(len(layouts)))
    world.engine.answer = lambda _: Exit(code=1, stderr=b"no such program")
    with pytest.raises(BuildFailedError, match="could not compile"):
        world.make([binary_layout(tmp_path), layout(tmp_path)], ahead=Holding(world))
    assert len(begun) == 1


def test_a_layer_that_fails_ends_the_compilation_of_byte_code(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_until_given_up(_: ContainerRun, __: Callable[[str], None] | None = None) -> Exit:
        keep_on(60)
        pytest.fail("nobody gave it up")

    monkeypatch.setattr(world.engine, "run", compile_until_given_up)
    with pytest.raises(BuildFailedError, match=r"^broken-1.0-py3-none-any.whl: broken.bin is damaged"):
        world.make([broken_layout(tmp_path), layout(tmp_path)])


@pytest.mark.usefixtures("small_is_large")
@pytest.mark.parametrize("stored", [True, False])
def test_a_layer_that_is_on_its_way_is_broken_off_when_another_fails(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, *, stored: bool
) -> None:
    begun, broken_off = threading.Event(), list[BaseException]()

    class Slow(Recorder):
        def send(self, number: int, size: int, pieces: Iterator[bytes], finished: Callable[[], Layer]) -> None:
            if size < 3 << 20:
                assert begun.wait(60)
                raise BuildFailedError("another layer cannot be made")
            next(pieces)
            begun.set()
            assert self.closed.wait(60)
            with pytest.raises(CancelledError) as caught:
                next(pieces)
            broken_off.append(caught.value)

    noise = random.Random(1).randbytes(3 << 20)
    large = read_layout(make_wheel(tmp_path, "large", {"large/lib.so": noise}), VENV)
    if stored:
        world.make([large])
    world.have(())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(BuildFailedError, match="another layer cannot be made"):
        world.make([large], ahead=Slow(world))
    assert len(broken_off) == 1
    assert list((world.store.root / "tmp").iterdir()) == []


def test_a_build_that_fails_does_not_wait_for_a_layer_that_another_build_makes(tmp_path: Path, world: World) -> None:
    waiting = threading.Event()
    world.store = Store(world.store.root, lambda _: waiting.set())
    world.engine.answer = lambda _: Exit(code=1 if waiting.wait(60) else 0)
    [_, plan] = plan_layers([binary_layout(tmp_path)])
    key = layer_key(plan, terms(python="3.13.5-2", epoch=EPOCH))
    with ThreadPoolExecutor() as pool, world.store.exclusive(f"layer-{key}"):
        building = pool.submit(world.make, [binary_layout(tmp_path), layout(tmp_path)])
        assert isinstance(building.exception(60), BuildFailedError)


def test_threads_that_cannot_be_started_leave_none_behind_that_waits(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def limited(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    ahead = Recorder(world, holds=True)
    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        world.make([binary_layout(tmp_path), layout(tmp_path)], ahead=ahead)
    assert ahead.closed.is_set()
    assert not any(thread.is_alive() for thread in started)


def test_another_clock_makes_new_layers_from_the_same_byte_code(tmp_path: Path, world: World) -> None:
    first = world.make([layout(tmp_path)])
    second = world.make([layout(tmp_path)], epoch=EPOCH + 1)
    assert not {layer.blob.diff_id for layer in first} & {layer.blob.diff_id for layer in second}
    assert len(world.engine.runs) == 1


def test_a_changed_wheel_changes_its_own_layer_only(tmp_path: Path, world: World) -> None:
    others = [layout(tmp_path, f"p{number}") for number in range(5)]
    first = world.make([*others, layout(tmp_path)])
    second = world.make([*others, layout(tmp_path, source=b"x = 2\n")])
    assert sum(one != other for one, other in zip(first, second, strict=True)) == 1


def test_a_layer_whose_blob_is_gone_is_made_again(tmp_path: Path, world: World) -> None:
    first = world.make([layout(tmp_path)])
    world.store.path(first[1].blob.digest.removeprefix("sha256:")).unlink()
    assert world.make([layout(tmp_path)]) == first
    assert world.store.has(first[1].blob.digest.removeprefix("sha256:"))


def test_the_container_sees_only_the_wheels_that_it_compiles_and_has_a_fixed_hash_seed(
    tmp_path: Path, world: World
) -> None:
    one = layout(tmp_path)
    world.make([one, binary_layout(tmp_path)])
    [job] = world.engine.runs
    assert job.image.startswith("envbuild/base:")
    assert job.command[0] == "/usr/bin/python3.13"
    assert job.environment["PYTHONHASHSEED"] == "0"
    assert job.read_only_root
    wheels = [mount.target for mount in job.mounts if mount.target.startswith("/wheels")]
    assert wheels == [f"/wheels/{one.wheel.sha256}"]
    assert [mount.target for mount in job.mounts if not mount.read_only] == ["/results"]


def test_wheels_without_python_files_need_no_container(tmp_path: Path, world: World) -> None:
    world.make([binary_layout(tmp_path)])
    assert (world.engine.runs, world.engine.loaded) == ([], [])


def test_what_a_record_says_of_a_file_is_kept_even_if_it_lies(tmp_path: Path, world: World) -> None:
    wheel = make_wheel(tmp_path, "foo", {"foo.bin": b"1"}, lie={"foo.bin": b"2"})
    [_, layer] = world.make([read_layout(wheel, VENV)])
    assert record_line("foo.bin", b"2") in world.read(layer, f"{SITE}/foo-1.0.dist-info/RECORD").decode()


def test_a_wheel_with_a_damaged_file_leaves_no_layer(tmp_path: Path, world: World) -> None:
    broken = broken_layout(tmp_path)
    with pytest.raises(BuildFailedError, match=r"^broken-1.0-py3-none-any.whl: broken.bin is damaged"):
        world.make([broken])
    [_, plan] = plan_layers([broken])
    assert world.store.result("layer", layer_key(plan, terms(python="3.13.5-2", epoch=EPOCH))) is None
    assert list((world.store.root / "tmp").iterdir()) == []


def test_what_another_wheel_lies_over_is_in_no_layer_nor_is_its_byte_code(tmp_path: Path, world: World) -> None:
    base = make_wheel(tmp_path, "base", {"foo/x.py": b"x = 1\n", "foo/y.py": b"y = 1\n"})
    upper = make_wheel(tmp_path, "upper", {"foo/x.py": b"not Python 3\n"}, requires=["base"])
    layouts = [read_layout(wheel, VENV) for wheel in (base, upper)]
    settled = settle_owners(layouts, (), Target(python="3.13", glibc=41))
    layers = world.make(settled.layouts)[1:]
    members = [name for layer in layers for name in world.members(layer) if name.endswith((".py", ".pyc"))]
    assert sorted(members) == [f"{SITE}/foo/{name}" for name in ("__pycache__/y.cpython-313.pyc", "x.py", "y.py")]
    [below] = [layer for layer in layers if f"{SITE}/base-1.0.dist-info/RECORD" in world.members(layer)]
    record = world.read(below, f"{SITE}/base-1.0.dist-info/RECORD").decode()
    assert record_line("foo/x.py", b"x = 1\n") in record
    assert "x.cpython-313.pyc" not in record


def test_a_failed_compile_names_the_wheel_and_shows_the_interpreters_words(tmp_path: Path) -> None:
    engine = FakeEngine(answer=lambda _: Exit(code=1, stderr=b"compiled 123\nSegmentation fault\n"))
    with pytest.raises(BuildFailedError, match=r"foo-1.0-py3-none-any.whl \(exit code 1\)") as caught:
        compile_wheels(
            [layout(tmp_path)],
            venv=VENV,
            python="x",
            base_image=lambda: "base",
            engine=engine,
            store=Store(tmp_path / "store"),
            on_progress=lambda _: None,
            on_compiled=lambda _, __: pytest.fail("nothing was compiled"),
        )
    assert caught.value.evidence == ("Segmentation fault",)


@pytest.mark.parametrize(("held", "waits"), [(b"y = 1\n", False), (b"x = 1\n", True)])
def test_byte_code_waits_for_the_process_that_compiles_the_same_wheel_and_for_no_other(
    tmp_path: Path, held: bytes, *, waits: bool
) -> None:
    class MustWait(Exception):  # noqa: N818 - an answer, not an error
        pass

    def wait(_: str) -> None:
        raise MustWait

    own, other = layout(tmp_path, source=b"x = 1\n"), layout(tmp_path, source=held)
    store = Store(tmp_path / "store", wait)
    failing = FakeEngine(answer=lambda _: Exit(code=1, stderr=b"reached\n"))
    with (
        store.exclusive(f"bytecode-{byte_code_key(other, VENV, 'x')}"),
        pytest.raises(MustWait if waits else BuildFailedError),
    ):
        compile_wheels(
            [own],
            venv=VENV,
            python="x",
            base_image=lambda: "base",
            engine=failing,
            store=store,
            on_progress=lambda _: None,
            on_compiled=lambda _, __: pytest.fail("nothing was compiled"),
        )


def test_every_input_of_a_layer_is_in_its_key(tmp_path: Path) -> None:
    plan = LayerPlan(title="foo 1.0", layouts=(layout(tmp_path),))
    key = layer_key(plan, terms())
    assert key == layer_key(plan, terms())
    other = LayerPlan(title="foo 1.0", layouts=(layout(tmp_path, source=b"y = 1\n"),))
    others = [
        layer_key(plan, terms(python="y")),
        layer_key(plan, terms(epoch=2)),
        layer_key(plan, terms(venv=Venv(python="3.13", prefix="/opt/other"))),
        layer_key(other, terms()),
        layer_key(plan, terms(compression="zstd")),
    ]
    assert len({key, *others}) == 6


def test_a_cuda_compiler_changes_the_layer_of_the_environment_alone(tmp_path: Path) -> None:
    compiling = Venv(python="3.13", cuda="13", libraries=("cudart",))
    environment = LayerPlan(title="environment")
    assert layer_key(environment, terms()) != layer_key(environment, terms(venv=compiling))
    wheel = LayerPlan(title="foo 1.0", layouts=(layout(tmp_path),))
    assert layer_key(wheel, terms()) == layer_key(wheel, terms(venv=compiling))
    links = {entry.path: entry.target for entry in entries_of(environment, compiling, {}) if isinstance(entry, Link)}
    toolkit = "/opt/env/lib/python3.13/site-packages/nvidia/cu13"
    assert links[f"{toolkit}/lib64"] == "lib"
    assert links[f"{toolkit}/lib/libcudart.so"] == "libcudart.so.13"


def test_a_layer_without_python_files_serves_every_base(tmp_path: Path) -> None:
    plan = LayerPlan(title="binary 1.0", layouts=(binary_layout(tmp_path),))
    assert layer_key(plan, terms()) == layer_key(plan, terms(python="y"))


def test_byte_code_depends_on_the_python_and_the_place(tmp_path: Path) -> None:
    one = layout(tmp_path)
    keys = {
        byte_code_key(one, VENV, "x"),
        byte_code_key(one, VENV, "y"),
        byte_code_key(one, Venv(python="3.13", prefix="/opt/other"), "x"),
    }
    assert len(keys) == 3


def test_layers_that_another_machine_made_come_from_where_they_are_shared(
    new_world: Callable[[str], World], tmp_path: Path
) -> None:
    with running(FakeRegistry()) as registry:
        environment = {"ENVBUILD_SHARE": f"{registry.host}/team/shared", "DOCKER_CONFIG": str(tmp_path)}
        one, two = new_world("one"), new_world("two")
        writer = open_share(settings_from({**environment, "ENVBUILD_SHARE_PUSH": "1"}), one.store, pytest.fail)
        made = one.make([layout(tmp_path)], share=writer)
        found = two.make([layout(tmp_path)], share=open_share(settings_from(environment), two.store, pytest.fail))
        assert found == made
        assert two.said == []
        assert two.engine.runs == [], "no byte code was compiled"
        assert two.read(found[1], f"{SITE}/foo/data") == b"1"


def test_a_disk_that_fills_up_under_a_layer_is_named_and_with_more_room_the_layer_is_made(
    new_world: Callable[[str], World], tmp_path: Path
) -> None:
    made = make_wheel(tmp_path, "noise", {"noise/data": random.Random(1).randbytes(8 << 20), "noise.py": b"x = 1\n"})
    with small_disk(tmp_path / "disk", megabytes=6):
        world = new_world("disk/store")
        with pytest.raises(DiskFullError, match=r"no space is left on the disk: the store .*disk/store has \d MiB"):
            world.make([read_layout(made, VENV)])
        assert list((world.store.root / "tmp").iterdir()) == []
        kept = [world.store.result("layer", key) or {} for kind, key in world.store.results() if kind == "layer"]
        assert all(world.store.has(record["digest"].removeprefix("sha256:")) for record in kept)
        enlarge(tmp_path / "disk", megabytes=40)
        [*_, layer] = world.make([read_layout(made, VENV)])
        assert world.read(layer, f"{SITE}/noise.py") == b"x = 1\n"
