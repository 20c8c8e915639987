"""Loads the lower layers of an image into the engine while those above them are still made."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Self

from builder.build.image import ImageSettings, assemble, chain_ids, send_image
from builder.errors import EngineError, EnvbuildError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from builder.build.image import Layer
    from builder.engine import Engine
    from builder.store import Store

STEP = 512 << 20  # bytes unpacked: a load of less takes longer than it saves
LABEL = "dev.envbuild.ahead"
KIND = "ahead"  # of the records of what is loaded: by them `envbuild gc` finds what a killed build has left


class Ahead:
    """Loads growing images of the finished layers, in a thread; at the end of the `with` block none of them is left.

    The engine keeps their layers if the whole image is loaded in that block, after `finish`. What cannot be loaded
    ahead is no error: the load of the whole image sends it, or says why not. Nothing is loaded ahead where the engine
    does not know the base, which was loaded to compile byte code, by its chain id: it takes only whole archives.
    """

    def __init__(self, key: str, epoch: int, *, engine: Engine, store: Store) -> None:
        self._settings = ImageSettings(epoch=epoch, labels={LABEL: key})  # no two builds have an image in common
        self._reference = f"envbuild/ahead:{key[:16]}"
        self._engine, self._store = engine, store
        self._changed = threading.Condition()
        self._finished: tuple[Layer, ...] = ()
        self._ended = self._broken_off = False
        self._images: list[str] = []
        self._thread = threading.Thread(target=self._load_all, daemon=True)

    def __enter__(self) -> Self:
        """Begin to wait for layers."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        """Remove what was loaded; where the block ended with an error, what is being sent is broken off."""
        self._broken_off = kind is not None
        self.finish()
        for image in self._images:
            with contextlib.suppress(EngineError):  # its record stays
                self._engine.remove_image(image)
                self._store.forget_result(KIND, _key(image))

    def take(self, layers: tuple[Layer, ...]) -> None:
        """Note that all these layers, from the bottom of the image, are in the store."""
        with self._changed:
            self._finished = layers
            self._changed.notify()

    def finish(self) -> None:
        """Begin no further load, and wait for the one that runs."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def _load_all(self) -> None:
        with contextlib.suppress(EnvbuildError, OSError):
            seen = 0
            while layers := self._more_than(seen):
                seen = len(layers)
                if _size(layers) < STEP:
                    continue
                present = self._engine.chain_ids()
                if chain_ids(layers)[0] not in present:
                    return
                if _size(layers, present) >= STEP:
                    self._load(layers, present)

    def _more_than(self, count: int) -> tuple[Layer, ...]:
        """Wait for more finished layers than `count`; none: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._finished) > count)
            return () if self._ended else self._finished

    def _load(self, layers: tuple[Layer, ...], present: frozenset[str]) -> None:
        image = assemble(layers, self._settings)
        self._store.keep_result(KIND, _key(image.config_digest), {"image_id": image.config_digest})
        self._images.append(image.config_digest)
        send_image(
            image,
            self._reference,
            engine=self._engine,
            store=self._store,
            present=present,
            through=self._unless_broken_off,
        )

    def _unless_broken_off(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if self._broken_off:
                raise EngineError("broken off: the image is not built any more")
            yield piece


def _key(image: str) -> str:
    return image.removeprefix("sha256:")


def _size(layers: tuple[Layer, ...], present: frozenset[str] = frozenset()) -> int:
    """Return the bytes, unpacked, of the layers that are not present by their chain ids."""
    chains = chain_ids(layers)
    return sum(layer.blob.unpacked for layer, chain in zip(layers, chains, strict=True) if chain not in present)
