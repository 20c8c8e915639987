"""Lower layers are loaded while those above them are made: the same image, no layer sent twice, nothing left over."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from builder.build import ahead
from builder.build.ahead import Ahead
from builder.build.image import Image, ImageSettings, assemble, chain_ids, load_image
from builder.build.layers import load_base, make_base_layer
from builder.collect.garbage import find_unreachable
from builder.collect.roots import find_roots
from builder.document import sha256_bytes
from builder.engine import LocalImage, chain_of
from builder.errors import BuildFailedError, EngineError
from builder.store import Store
from tests.fakes import FakeEngine

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

KEY = "a" * 64
REFERENCE = "envbuild/x:latest"


@dataclass(kw_only=True)
class KeepingEngine(FakeEngine):
    """Keeps images and their layers as Docker does; with `whole` it finds no layer by its chain id.

    `leaving` are images that another process removes during the next load, `staying` those that cannot be removed.
    """

    whole: bool = False
    failure: Exception | None = None
    leaving: list[str] = field(default_factory=list)
    staying: list[str] = field(default_factory=list)
    sent: list[list[str]] = field(default_factory=list)
    diff_ids: dict[str, tuple[str, ...]] = field(default_factory=dict)
    loads: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    asked: threading.Event = field(default_factory=threading.Event)

    def chain_ids(self) -> frozenset[str]:
        self.asked.set()
        kept = (self.diff_ids[image] for image in self.images.values())
        return frozenset() if self.whole else frozenset(chain for ids in kept for chain in chain_of(ids))

    def load(self, archive: Iterable[bytes]) -> None:
        if self.failure is not None:
            self.loads.release()
            raise self.failure
        with tarfile.open(fileobj=io.BytesIO(b"".join(archive))) as files:
            [entry] = json.load(files.extractfile("manifest.json"))  # type: ignore[arg-type]
            config = files.extractfile(entry["Config"]).read()  # type: ignore[union-attr]
            sent = [name for name in files.getnames() if name.endswith(".tar")]
        self.sent.append(sent)
        while self.leaving:
            self.remove_image(self.leaving.pop())
        ids = tuple(json.loads(config)["rootfs"]["diff_ids"])
        for chain, name in zip(chain_of(ids), entry["Layers"], strict=True):
            if name not in sent and chain not in self.chain_ids():
                raise BuildFailedError("the engine could not load an image", evidence=(f"open {name}: no such file",))
        image = f"sha256:{sha256_bytes(config)}"
        self.diff_ids[image] = ids
        self.images |= {entry["RepoTags"][0]: image, image: image}  # an image stays when its tag moves
        self.loads.release()

    def remove_image(self, reference: str) -> None:
        if reference in self.staying:
            raise EngineError("conflict: unable to delete")
        for name in [name for name, image in self.images.items() if reference in {name, image}]:
            del self.images[name]


@dataclass(kw_only=True)
class Work:
    """An image of four layers, and an engine to load it into, which has the base, the lowest of them."""

    store: Store
    engine: KeepingEngine
    image: Image

    def ahead(self) -> Ahead:
        return Ahead(KEY, 1, engine=self.engine, store=self.store)

    def load(self) -> None:
        load_image(self.image, REFERENCE, engine=self.engine, store=self.store)

    @property
    def names(self) -> list[str]:
        return [f"{layer.blob.diff_id.removeprefix('sha256:')}.tar" for layer in self.image.layers]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    monkeypatch.setattr(ahead, "STEP", 1)
    store = Store(tmp_path)
    layers = tuple(make_base_layer(store.add_bytes(text), store=store) for text in (b"one", b"two", b"three", b"four"))
    work = Work(store=store, engine=KeepingEngine(), image=assemble(layers, ImageSettings(epoch=1)))
    load_base(layers[:1], epoch=1, engine=work.engine, store=store)
    assert work.engine.loads.acquire(blocking=False)
    work.engine.sent.clear()
    work.engine.asked.clear()
    return work


def records(work: Work) -> list[str]:
    """Return the images of which the store still says that they were loaded ahead."""
    values = [work.store.result(kind, key) or {} for kind, key in work.store.results() if kind == ahead.KIND]
    return [value["image_id"] for value in values]


def of_another_build(work: Work, count: int) -> str:
    """Load an image of so many of the layers as another build does, and return its id."""
    image = assemble(work.image.layers[:count], ImageSettings(epoch=1, labels={ahead.LABEL: "b" * 64}))
    load_image(image, "envbuild/ahead:b", engine=work.engine, store=work.store)
    assert work.engine.loads.acquire(blocking=False)
    work.engine.sent.clear()
    return image.config_digest


def take(work: Work, going: Ahead, count: int) -> None:
    """Say that so many layers are finished, and wait until they were loaded."""
    going.take(work.image.layers[:count])
    assert work.engine.loads.acquire(timeout=60)


def test_each_layer_is_sent_once_and_the_image_is_the_same(work: Work) -> None:
    with work.ahead() as going:
        take(work, going, 2)
        take(work, going, 3)
        going.finish()
        work.load()
    assert work.engine.sent == [work.names[1:2], work.names[2:3], work.names[3:]]
    assert work.engine.image_id(REFERENCE) == work.image.config_digest


def test_nothing_is_left_of_what_was_loaded_ahead(work: Work) -> None:
    before = set(work.engine.images)
    with work.ahead() as going:
        take(work, going, 2)
        take(work, going, 3)
        assert len(records(work)) == 2
        going.finish()
        work.load()
    assert set(work.engine.images) - before == {REFERENCE, work.image.config_digest}
    assert records(work) == []
    assert work.engine.chain_ids() == set(chain_ids(work.image.layers))


def test_layers_that_the_engine_has_are_not_loaded_ahead(work: Work) -> None:
    work.load()
    work.engine.asked.clear()
    with work.ahead() as going:
        going.take(work.image.layers[:3])
        assert work.engine.asked.wait(60)
        going.finish()
        work.load()
    assert len(work.engine.sent) == 1


def test_an_engine_that_needs_whole_archives_gets_none_ahead(work: Work) -> None:
    work.engine.whole = True
    with work.ahead() as going:
        going.take(work.image.layers[:3])
        assert work.engine.asked.wait(60)
        going.finish()
        work.load()
    assert work.engine.sent == [work.names]


@pytest.mark.parametrize("failure", [EngineError("no space left"), PermissionError("a file of the store")])
def test_a_load_ahead_that_fails_leaves_all_to_the_load_of_the_image(
    work: Work, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    with work.ahead() as going:
        work.engine.failure = failure
        take(work, going, 2)
        work.engine.failure = None
        going.take(work.image.layers[:3])
        going.finish()
        work.load()
    assert work.engine.sent == [work.names[1:]]
    assert told == []


def test_layers_that_go_with_another_builds_image_while_this_one_is_sent_are_sent_after_all(work: Work) -> None:
    work.engine.leaving = [of_another_build(work, 3)]
    work.load()
    assert work.engine.sent == [work.names[3:], work.names]
    assert work.engine.image_id(REFERENCE) == work.image.config_digest


def test_layers_that_go_while_others_are_loaded_ahead_are_sent_after_all(work: Work) -> None:
    work.engine.leaving = [of_another_build(work, 2)]
    with work.ahead() as going:
        take(work, going, 3)
        going.finish()
        work.load()
    assert work.engine.sent == [work.names[2:3], work.names[:3], work.names[3:]]


def test_an_image_that_the_engine_refuses_for_another_reason_is_sent_once(work: Work) -> None:
    work.engine.failure = EngineError("no space left")
    with pytest.raises(EngineError, match="no space left"):
        work.load()
    assert work.engine.loads.acquire(blocking=False)
    assert not work.engine.loads.acquire(blocking=False)


def test_a_build_that_fails_leaves_no_image(work: Work) -> None:
    before = dict(work.engine.images)
    with contextlib.suppress(BuildFailedError), work.ahead() as going:
        take(work, going, 2)
        raise BuildFailedError("a layer could not be made")
    assert work.engine.sent == [work.names[1:2]]
    assert work.engine.images == before


def test_what_cannot_be_removed_hides_no_error_and_keeps_no_other(work: Work) -> None:
    going = work.ahead().__enter__()
    take(work, going, 2)
    work.engine.staying = records(work)
    take(work, going, 3)
    going.__exit__(BuildFailedError, BuildFailedError("a layer could not be made"), None)
    assert records(work) == work.engine.staying
    assert set(chain_ids(work.image.layers)[:3]) - work.engine.chain_ids() == {chain_ids(work.image.layers)[2]}


def test_what_a_killed_build_has_left_is_garbage(work: Work) -> None:
    going = work.ahead().__enter__()
    take(work, going, 2)
    take(work, going, 3)
    going.finish()
    newest = work.engine.images[f"envbuild/ahead:{KEY[:16]}"]
    [older] = set(records(work)) - {newest}
    images = (
        LocalImage(image_id=older, references=(), size=1, in_use=False),
        LocalImage(image_id=newest, references=(f"envbuild/ahead:{KEY[:16]}",), size=1, in_use=False),
    )
    garbage = find_unreachable(find_roots(work.store), work.store, images)
    assert [image.names for image in garbage.images] == [(older,), (f"envbuild/ahead:{KEY[:16]}",)]
    assert {key for kind, key in garbage.results if kind == ahead.KIND} == {
        image.removeprefix("sha256:") for image in (older, newest)
    }


def test_a_build_that_fails_breaks_off_what_is_being_sent(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, failed = threading.Event(), threading.Event()
    read: list[bytes] = []

    def load(archive: Iterable[bytes]) -> None:
        for piece in archive:
            read.append(piece)
            begun.set()
            assert failed.wait(60)

    monkeypatch.setattr(work.engine, "load", load)
    going = work.ahead()
    exit_ahead, finish = going.__exit__, going.finish

    def finish_failed() -> None:
        failed.set()
        finish()

    monkeypatch.setattr(going, "finish", finish_failed)
    going.__enter__()
    going.take(work.image.layers[:3])
    assert begun.wait(60)
    exit_ahead(BuildFailedError, BuildFailedError("x"), None)
    assert len(read) == 1


def test_a_small_image_is_not_loaded_ahead_and_costs_no_question(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "STEP", 1 << 30)
    monkeypatch.setattr(work.engine, "chain_ids", lambda: pytest.fail("it was asked"))
    with work.ahead() as going:
        going.take(work.image.layers)
    assert work.engine.sent == []
