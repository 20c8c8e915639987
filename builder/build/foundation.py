"""Lock -> what everything stands on: the base in the store and the engine, the toolchain image on top of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.build.base import base_identity, bootstrap_base, debs_folder, find_base
from builder.build.compression import COMPRESSIONS
from builder.build.image import chain_ids
from builder.build.layers import image_layers, load_base, make_base_layer
from builder.build.render import render_dockerfiles
from builder.build.toolchain import build_toolchain, has_toolchain, toolchain_key, toolchain_tag
from builder.lock.debian import fetch_debs
from builder.lock.image_base import fetch_image
from builder.lock.wheels import fetch_wheels
from builder.tools import show_lines, show_progress

if TYPE_CHECKING:
    from builder.build.base import RootFilesystem
    from builder.build.compression import Compression
    from builder.build.image import Layer
    from builder.lock.model import Lock
    from builder.recipe.source import RecipeFile
    from builder.tools import Tools


def rootfs_of(locked: Lock, tools: Tools) -> RootFilesystem | None:
    """Return the bootstrapped base; None where the base is an image, whose layers are then in the store."""
    debian = locked.file.debian
    if debian is None:
        _fetch_base(locked, tools)
        return None
    made = find_base(debian, tools.store)
    if made is not None:
        tools.console.current(f"base Debian {debian.suite}")
        return made
    with tools.console.step(f"bootstrap Debian {debian.suite} from {len(debian.base)} packages") as step:
        fetch_debs(debian.base, tools.store, tools.settings, show_progress(step))
        return bootstrap_base(debian, tools.store, step.detail)


def base_of(locked: Lock, tools: Tools, compression: Compression) -> tuple[Layer, ...]:
    """Return the layers of a lock's base; the engine has them too."""
    rootfs = rootfs_of(locked, tools)
    if rootfs is not None:
        layers: tuple[Layer, ...] = (make_base_layer(rootfs.sha256, store=tools.store, compression=compression),)
    else:
        layers = image_layers(locked.file.base) if locked.file.base else ()
        tools.store.keep_result("base", base_identity(locked), {"diff_id": chain_ids(layers)[-1]})
    load_base(layers, epoch=locked.epoch, engine=tools.engine, store=tools.store)
    return layers


def toolchain_of(source: RecipeFile, locked: Lock) -> str:
    """Return the key of the toolchain of a recipe."""
    files = render_dockerfiles(source.recipe, locked)
    return toolchain_key(files.get("Dockerfile.toolchain", ""), base_identity(locked), locked)


def toolchain_image(source: RecipeFile, locked: Lock, tools: Tools) -> str:
    """Return the tag of the toolchain image of a recipe, built if the engine does not have it."""
    files, key = render_dockerfiles(source.recipe, locked), toolchain_of(source, locked)
    if has_toolchain(key, tools.engine, tools.store):
        return toolchain_tag(key)
    base = base_of(locked, tools, COMPRESSIONS[source.recipe.compression])
    debs = locked.toolchain_debs
    wheels = (*locked.toolchain_wheels, *locked.compiler_wheels)
    with tools.console.step(f"build the toolchain: {len(debs)} packages, {len(wheels)} wheels") as step:
        fetch_debs(debs, tools.store, tools.settings, show_progress(step))
        fetch_wheels(wheels, tools.store, tools.settings, show_progress(step), indexes=source.recipe.indexes)
        return build_toolchain(
            files,
            key=key,
            base=load_base(base, epoch=locked.epoch, engine=tools.engine, store=tools.store),
            lock=locked,
            engine=tools.engine,
            store=tools.store,
            fill_debs=lambda folder: debs_folder(debs, tools.store, folder),
            on_line=show_lines(step, tools.console),
        )


def _fetch_base(locked: Lock, tools: Tools) -> None:
    base = locked.file.base
    if base is None or all(tools.store.has(layer.digest.removeprefix("sha256:")) for layer in base.layers):
        tools.console.current("base image")
        return
    with tools.console.step(f"fetch the base {base.reference}") as step:
        fetch_image(base, tools.store, tools.settings, show_progress(step))
