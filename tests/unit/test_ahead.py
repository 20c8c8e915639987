"""Layers are loaded while they are made: the same image, no layer sent twice, nothing left over."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from errno import ENOSPC
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
    from collections.abc import Iterable, Iterator
    from pathlib import Path

KEY = "a" * 64
TEXTS = (b"one", b"two", b"three", b"four")
REFERENCE = "envbuild/x:latest"


@dataclass(kw_only=True)
class KeepingEngine(FakeEngine):
    """Keeps images and their layers as Docker does.

    `leaving` are images that another process removes during the next load, `staying` those that cannot be removed.
    """

    failure: Exception | None = None
    leaving: list[str] = field(default_factory=list)
    staying: list[str] = field(default_factory=list)
    sent: list[list[str]] = field(default_factory=list)
    diff_ids: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def chain_ids(self) -> frozenset[str]:
        kept = (self.diff_ids[image] for image in self.images.values())
        return frozenset(chain for ids in kept for chain in chain_of(ids))

    def load(self, archive: Iterable[bytes]) -> None:
        if self.failure is not None:
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

    def begun(self, count: int = 3) -> Ahead:
        """Return what sends so many layers upon the base."""
        going = self.ahead()
        going.begin(self.image.layers[:1], count)
        return going

    def send(self, going: Ahead, number: int, pieces: Iterator[bytes] | None = None) -> None:
        text = TEXTS[number]
        going.send(number, len(text), iter([text]) if pieces is None else pieces, lambda: self.image.layers[number])

    @property
    def names(self) -> list[str]:
        return [f"{layer.blob.diff_id.removeprefix('sha256:')}.tar" for layer in self.image.layers]


@pytest.fixture
def work(tmp_path: Path) -> Work:
    store = Store(tmp_path)
    layers = tuple(make_base_layer(store.add_bytes(text), store=store) for text in TEXTS)
    work = Work(store=store, engine=KeepingEngine(), image=assemble(layers, ImageSettings(epoch=1)))
    load_base(layers[:1], epoch=1, engine=work.engine, store=store)
    work.engine.sent.clear()
    return work


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def records(work: Work) -> list[str]:
    """Return the images of which the store still says that they were loaded ahead."""
    values = [work.store.result(kind, key) or {} for kind, key in work.store.results() if kind == ahead.KIND]
    return [value["image_id"] for value in values]


def of_another_build(work: Work, count: int) -> str:
    """Load an image of so many of the layers as another build does, and return its id."""
    image = assemble(work.image.layers[:count], ImageSettings(epoch=1, labels={ahead.LABEL: "b" * 64}))
    load_image(image, "envbuild/ahead:b", engine=work.engine, store=work.store)
    work.engine.sent.clear()
    return image.config_digest


def test_each_layer_is_sent_once_and_the_image_is_the_same(work: Work) -> None:
    with work.begun(2) as going:
        for number in (1, 2, 3):
            work.send(going, number)
        work.load()
    assert [len(names) for names in work.engine.sent] == [1, 1, 1]
    assert work.engine.sent[2] == work.names[3:]
    assert work.engine.image_id(REFERENCE) == work.image.config_digest


def test_nothing_is_left_of_what_was_loaded_ahead(work: Work) -> None:
    before = set(work.engine.images)
    with work.begun() as going:
        for number in (1, 2, 3):
            work.send(going, number)
        assert len(records(work)) == 1, "the image of the layers below was removed: this one has them"
        work.load()
    assert set(work.engine.images) - before == {REFERENCE, work.image.config_digest}
    assert records(work) == []
    assert work.engine.chain_ids() == set(chain_ids(work.image.layers))


def test_a_layer_is_held_back_until_the_one_below_it_is_there(work: Work, threads: ThreadPoolExecutor) -> None:
    taken = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield TEXTS[2]
        taken.set()

    with work.begun() as going:
        upper = threads.submit(work.send, going, 2, pieces())
        assert taken.wait(60), "the engine takes it while it is made"
        assert work.engine.sent == []
        work.send(going, 1)
        upper.result(60)
        assert set(chain_ids(work.image.layers)[:3]) <= work.engine.chain_ids()


def test_what_the_engine_has_of_an_images_layers_is_told_from_the_lowest(work: Work) -> None:
    of_another_build(work, 2)
    with work.ahead() as going:
        assert going.there(work.image.layers) == work.image.layers[:2]
        assert going.there(work.image.layers[1:]) == ()


def test_nothing_is_sent_ahead_that_was_not_begun(work: Work) -> None:
    untouched = iter([TEXTS[1]])
    with work.ahead() as going:
        work.send(going, 1, untouched)
        assert list(untouched) == [TEXTS[1]]
        work.load()
    assert work.engine.sent == [work.names[1:]]


@pytest.mark.parametrize("failure", [EngineError("no space left"), PermissionError("a file of the store")])
def test_a_load_ahead_that_fails_leaves_the_rest_to_the_load_of_the_image(work: Work, failure: Exception) -> None:
    with work.begun() as going:
        work.send(going, 1)
        work.engine.failure = failure
        work.send(going, 2)
        work.engine.failure = None
        work.send(going, 3)
        work.load()
    assert [len(names) for names in work.engine.sent] == [1, 2]
    assert work.engine.sent[1] == work.names[2:]


@pytest.mark.parametrize("error", [BuildFailedError("not what RECORD says"), OSError(ENOSPC, "full"), CancelledError()])
@pytest.mark.parametrize("good", [(), (b"t",)])
def test_a_layer_that_cannot_be_made_says_so_and_frees_those_that_wait_for_it(
    work: Work, threads: ThreadPoolExecutor, error: Exception, good: tuple[bytes, ...]
) -> None:
    def pieces() -> Iterator[bytes]:
        yield from good
        raise error

    with work.begun() as going:
        upper = threads.submit(work.send, going, 2)
        lower = threads.submit(work.send, going, 1, pieces())
        upper.result(60)
    assert lower.exception() is error
    assert work.engine.sent == []


def test_layers_that_go_with_another_builds_image_while_this_one_is_sent_are_sent_after_all(work: Work) -> None:
    work.engine.leaving = [of_another_build(work, 3)]
    work.load()
    assert work.engine.sent == [work.names[3:], work.names]
    assert work.engine.image_id(REFERENCE) == work.image.config_digest


def test_an_image_that_the_engine_refuses_for_another_reason_is_sent_once(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def refuse(_archive: Iterable[bytes]) -> None:
        tried.append(1)
        raise EngineError("no space left")

    monkeypatch.setattr(work.engine, "load", refuse)
    with pytest.raises(EngineError, match="no space left"):
        work.load()
    assert len(tried) == 1


def test_a_build_that_fails_leaves_no_image(work: Work) -> None:
    before = dict(work.engine.images)
    with contextlib.suppress(BuildFailedError), work.begun() as going:
        work.send(going, 1)
        work.send(going, 2)
        raise BuildFailedError("a layer could not be made")
    assert len(work.engine.sent) == 2
    assert work.engine.images == before
    assert records(work) == []


def test_what_cannot_be_removed_hides_no_error_and_keeps_its_record(work: Work) -> None:
    going = work.begun().__enter__()
    work.send(going, 1)
    work.engine.staying = records(work)
    work.send(going, 2)
    going.__exit__(BuildFailedError, BuildFailedError("a layer could not be made"), None)
    assert records(work) == work.engine.staying
    assert set(chain_ids(work.image.layers)[:3]) - work.engine.chain_ids() == {chain_ids(work.image.layers)[2]}


def test_what_a_killed_build_has_left_is_garbage(work: Work) -> None:
    going = work.begun().__enter__()
    work.send(going, 1)
    older = work.engine.images[f"envbuild/ahead:{KEY[:16]}"]
    work.engine.staying = [older]
    work.send(going, 2)
    newest = work.engine.images[f"envbuild/ahead:{KEY[:16]}"]
    images = (
        LocalImage(image_id=older, references=(), size=1, in_use=False),
        LocalImage(image_id=newest, references=(f"envbuild/ahead:{KEY[:16]}",), size=1, in_use=False),
    )
    garbage = find_unreachable(find_roots(work.store), work.store, images)
    assert [image.names for image in garbage.images] == [(older,), (f"envbuild/ahead:{KEY[:16]}",)]
    assert {key for kind, key in garbage.results if kind == ahead.KIND} == {
        image.removeprefix("sha256:") for image in (older, newest)
    }
