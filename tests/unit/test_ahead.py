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
from builder.build.layers import make_base_layer
from builder.document import sha256_bytes
from builder.engine import chain_of
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
    """Keeps images and their layers as Docker does; with `whole` it finds no layer by its chain id."""

    whole: bool = False
    failing: bool = False
    sent: list[list[str]] = field(default_factory=list)
    diff_ids: dict[str, tuple[str, ...]] = field(default_factory=dict)
    loads: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def chain_ids(self) -> frozenset[str]:
        kept = (self.diff_ids[image] for image in self.images.values())
        return frozenset() if self.whole else frozenset(chain for ids in kept for chain in chain_of(ids))

    def load(self, archive: Iterable[bytes]) -> None:
        if self.failing:
            self.loads.release()
            raise EngineError("no space left")
        with tarfile.open(fileobj=io.BytesIO(b"".join(archive))) as files:
            [entry] = json.load(files.extractfile("manifest.json"))  # type: ignore[arg-type]
            config = files.extractfile(entry["Config"]).read()  # type: ignore[union-attr]
            sent = [name for name in files.getnames() if name.endswith(".tar")]
        ids = tuple(json.loads(config)["rootfs"]["diff_ids"])
        for chain, name in zip(chain_of(ids), entry["Layers"], strict=True):
            assert name in sent or chain in self.chain_ids(), "a layer that is neither here nor in the archive"
        image = f"sha256:{sha256_bytes(config)}"
        self.diff_ids[image] = ids
        self.images |= {entry["RepoTags"][0]: image, image: image}  # an image stays when its tag moves
        self.sent.append(sent)
        self.loads.release()

    def remove_image(self, reference: str) -> None:
        for name in [name for name, image in self.images.items() if reference in {name, image}]:
            del self.images[name]


@dataclass(kw_only=True)
class Work:
    """An image of four layers, and an engine to load it into."""

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
    return Work(store=store, engine=KeepingEngine(), image=assemble(layers, ImageSettings(epoch=1)))


def take(work: Work, going: Ahead, count: int) -> None:
    """Say that so many layers are finished, and wait until they were loaded."""
    going.take(work.image.layers[:count])
    assert work.engine.loads.acquire(timeout=60)


def test_each_layer_is_sent_once_and_the_image_is_the_same(work: Work) -> None:
    with work.ahead() as going:
        take(work, going, 1)
        take(work, going, 3)
        going.finish()
        work.load()
    assert work.engine.sent == [work.names[:1], work.names[1:3], work.names[3:]]
    assert work.engine.image_id(REFERENCE) == work.image.config_digest


def test_nothing_is_left_of_what_was_loaded_ahead(work: Work) -> None:
    with work.ahead() as going:
        take(work, going, 1)
        take(work, going, 2)
        going.finish()
        work.load()
    assert set(work.engine.images) == {REFERENCE, work.image.config_digest}
    assert work.engine.chain_ids() == set(chain_ids(work.image.layers))


def test_layers_that_the_engine_has_are_not_loaded_ahead(work: Work) -> None:
    work.load()
    with work.ahead() as going:
        going.take(work.image.layers[:3])
        going.finish()
        work.load()
    assert len(work.engine.sent) == 1


def test_an_engine_that_needs_whole_archives_gets_one_ahead_and_the_image(work: Work) -> None:
    work.engine.whole = True
    with work.ahead() as going:
        take(work, going, 1)
        going.take(work.image.layers[:3])
        going.finish()
        work.load()
    assert work.engine.sent == [work.names[:1], work.names]


def test_a_load_ahead_that_fails_leaves_all_to_the_load_of_the_image(work: Work) -> None:
    with work.ahead() as going:
        work.engine.failing = True
        take(work, going, 1)
        work.engine.failing = False
        going.take(work.image.layers[:3])
        going.finish()
        work.load()
    assert work.engine.sent == [work.names]


def test_a_build_that_fails_leaves_no_image(work: Work) -> None:
    with contextlib.suppress(BuildFailedError), work.ahead() as going:
        take(work, going, 2)
        raise BuildFailedError("a layer could not be made")
    assert work.engine.sent == [work.names[:2]]
    assert work.engine.images == {}


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
