"""Find what nobody needs and remove it: only while no build runs, and in an order that a kill cannot harm."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from builder.collect.garbage import Garbage, find_unreachable
from builder.collect.roots import find_roots
from builder.errors import EngineError

if TYPE_CHECKING:
    from builder.engine import LocalImage
    from builder.tools import Tools


def find_garbage(tools: Tools) -> Garbage:
    """Return what may go now; without an engine its images are left out, with a warning."""
    return find_unreachable(find_roots(tools.store), tools.store, _images(tools))


def collect(shown: Garbage, tools: Tools) -> Garbage:
    """Remove what was shown and what still nobody needs, once no build uses the store; return what is gone.

    Images go first and files last: what a kill leaves of them is found again by the next collection.
    """
    with tools.store.alone():
        now = find_garbage(tools)
        gone = Garbage(
            results=tuple(result for result in now.results if result in set(shown.results)),
            pieces=tuple(piece for piece in now.pieces if piece in set(shown.pieces)),
            images=tuple(image for image in now.images if image in set(shown.images)),
        )
        with tools.console.step("remove") as step:
            _remove(gone, tools)
            step.end(f"{gone.size >> 20} MiB of {len(gone.pieces)} files, {len(gone.images)} images")
    return gone


def _remove(garbage: Garbage, tools: Tools) -> None:
    for image in garbage.images:
        for name in image.names:
            tools.engine.remove_image(name)
    for kind, key in garbage.results:
        tools.store.forget_result(kind, key)
    for piece in garbage.pieces:
        if piece.path.is_dir():
            shutil.rmtree(piece.path, ignore_errors=True)
        else:
            piece.path.unlink(missing_ok=True)


def _images(tools: Tools) -> tuple[LocalImage, ...]:
    try:
        return tools.engine.local_images()
    except EngineError as error:
        tools.console.warn(f"images of the engine are left out: {error.message}")
        return ()
