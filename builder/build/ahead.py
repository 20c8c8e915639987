"""Loads layers into the engine before their image: what is made or read is sent at once, each on those below it."""

from __future__ import annotations

import contextlib
import threading
import uuid
from typing import TYPE_CHECKING, Self

from builder.build.image import ImageSettings, archive_papers, assemble, chain_ids, layer_names, tar_pieces
from builder.errors import EngineError, EnvbuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from builder.build.image import Layer
    from builder.engine import Engine
    from builder.store import Store

LABEL = "dev.envbuild.ahead"
KIND = "ahead"  # of the records of what is loaded: by them `envbuild gc` finds what a killed build has left


class Ahead:
    """Sends layers as they are made or read, several at once; after the `with` block no image of its own is left.

    An engine puts a layer upon those below it when it has the layer's whole archive, so each archive is held back at
    its end until the layer below is there. The engine keeps the layers if the image that has them all is loaded in the
    block. What cannot be sent ahead is no error: the load of that image sends it, or says why not.
    """

    def __init__(self, key: str, epoch: int, *, engine: Engine, store: Store) -> None:
        self._settings = ImageSettings(epoch=epoch, labels={LABEL: key})  # no two builds have an image in common
        self._reference = f"envbuild/ahead:{key[:16]}"
        self._engine, self._store = engine, store
        self._changed = threading.Condition()
        self._layers: tuple[Layer, ...] = ()
        self._wanted = range(0)
        self._open = False
        self._images: list[str] = []  # in the order of their loads

    def __enter__(self) -> Self:
        """Nothing is sent before `begin`."""
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        """Remove what was sent, where no other image has it."""
        for image in self._images:
            self._remove(image)

    def there(self, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        """Return those of an image's lowest layers that the engine has, so that an archive may leave them out."""
        present = self._engine.chain_ids()
        return layers[: sum(chain in present for chain in chain_ids(layers))]

    def begin(self, below: tuple[Layer, ...], count: int) -> None:
        """Send so many layers from now on, those that come upon these, which the engine has."""
        self._layers = below
        self._wanted = range(len(below), len(below) + count)
        self._open = True

    def send(self, number: int, size: int, pieces: Iterator[bytes], finished: Callable[[], Layer]) -> None:
        """Send the tar of `size` bytes that will be the layer `number` of the image, if it is wanted.

        `finished` gives the layer when the last piece was taken. Returns when the engine has it, or when it is of no
        use: then pieces are left, or were never taken. Raises what taking a piece raises.
        """
        if number not in self._wanted or not self._open:
            return
        taken = _Taken(pieces)
        try:
            self._engine.load(self._archive(number, size, taken, finished))
        except BaseException as error:
            self.close()
            if taken.failed or not isinstance(error, (EnvbuildError, OSError)):
                raise
            return
        with self._changed:
            self._layers += (finished(),)
            older, self._images = self._images[:-1], self._images[-1:]
            self._changed.notify_all()
        for image in older:
            self._remove(image)

    def close(self) -> None:
        """Send nothing more; what is held back is broken off."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def _archive(
        self, number: int, size: int, pieces: Iterator[bytes], finished: Callable[[], Layer]
    ) -> Iterator[bytes]:
        name = f"{uuid.uuid4().hex}.tar"  # containerd would go on with a file of that name that was broken off
        yield from tar_pieces(name, pieces, size)
        layer = finished()
        with self._changed:
            self._changed.wait_for(lambda: not self._open or len(self._layers) == number)
            if not self._open:
                raise EngineError("a layer below could not be loaded ahead")
        image = assemble((*self._layers, layer), self._settings)
        self._store.keep_result(KIND, _key(image.config_digest), {"image_id": image.config_digest})
        self._images.append(image.config_digest)
        yield from archive_papers(image, self._reference, [*layer_names(self._layers), name])

    def _remove(self, image: str) -> None:
        with contextlib.suppress(EngineError):  # its record stays
            self._engine.remove_image(image)
            self._store.forget_result(KIND, _key(image))


class _Taken:
    """An iterator that knows whether it has failed."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.failed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._pieces)
        except StopIteration:
            raise
        except BaseException:
            self.failed = True
            raise


def _key(image: str) -> str:
    return image.removeprefix("sha256:")
