"""A locked recipe -> folders, archives and definition files that work without envbuild or without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.build.assembly import find_image
from builder.build.environment import image_venv
from builder.build.layers import image_layers, load_base
from builder.build.layout import write_layout
from builder.build.stage import build_recipe, find_plan, gather_materials
from builder.document import write_atomic
from builder.engine import ImageBuild
from builder.errors import BuildFailedError
from builder.export.agreement import differences, image_tree, refuse_differences
from builder.export.apptainer import definition
from builder.export.contents import image_context, kit, toolchain_context, wheels_folder
from builder.export.parcel import write_folder, write_tar
from builder.lock.debian import fetch_debs
from builder.lock.sources import restore_source
from builder.lock.wheels import fetch_wheels
from builder.lock.wish import wishes_of
from builder.store import mended, prove_all
from builder.tools import show_lines, show_progress

if TYPE_CHECKING:
    from pathlib import Path

    from builder.build.image import Image
    from builder.build.stage import Materials
    from builder.lock.model import Lock
    from builder.recipe.source import RecipeFile
    from builder.tools import Tools


def export_context(source: RecipeFile, locked: Lock, folder: Path, tools: Tools) -> None:
    """Write the build contexts of the rendered Dockerfiles: of the image in `folder`, of the toolchain below it."""

    def export() -> None:
        materials = _all_materials(source, locked, tools)
        with tools.console.step(f"write the build context {folder}"):
            image = image_context(source, locked, materials, tools.store)
            write_folder((*image, *toolchain_context(source, locked, tools.store)), folder)

    mended(tools.store, export, tools.console.warn)


def export_wheels(source: RecipeFile, locked: Lock, folder: Path, tools: Tools) -> None:
    """Write `pylock.toml` and, beside it, the folder of wheels that it names; uv and pip read them as they are.

    `last.txt` lists the wheels that lie over others, which uv installs in any order.
    """

    def export() -> None:
        _fetch_wheels(source, locked, tools)
        with tools.console.step(f"write {len(locked.wheels)} wheels to {folder}"):
            write_folder(wheels_folder(source, locked, tools.store), folder)

    mended(tools.store, export, tools.console.warn)


def export_kit(source: RecipeFile, locked: Lock, place: Path, tools: Tools) -> None:
    """Write a project and a store that `envbuild make` needs nothing else for: a folder, or a tar (`.tar`)."""

    def export() -> None:
        materials = _all_materials(source, locked, tools)
        items = kit(source, locked, materials, tools.store)
        with tools.console.step(f"write the kit {place}"):
            if place.suffix == ".tar":
                write_tar(items, place)
            else:
                write_folder(items, place)

    mended(tools.store, export, tools.console.warn)


def export_layout(source: RecipeFile, locked: Lock, place: Path, tools: Tools) -> None:
    """Write the image as an OCI image layout: a tar (`.tar`), which skopeo, podman and Apptainer read, or a folder."""

    def export() -> None:
        image = _assembled(source, locked, tools)
        with tools.console.step(f"write the OCI layout {place}"):
            prove_all(tools.store, [layer.blob.digest.removeprefix("sha256:") for layer in image.layers])
            write_layout(image, place, store=tools.store, name="latest")

    mended(tools.store, export, tools.console.warn)


def _assembled(source: RecipeFile, locked: Lock, tools: Tools) -> Image:
    """Return the image with its layers, which are made again where only the engine has them."""
    for _ in range(2):
        build_recipe(source, locked, tools)
        plan = find_plan(source, locked, tools.store)
        image = find_image(plan, tools.store) if plan else None
        if image is not None:
            return image
        if plan is not None:
            tools.store.forget_result("image", plan.key)
    raise BuildFailedError(
        f"layers of {source.recipe.name} left the store while they were needed", remedy="run it again"
    )


def export_definition(source: RecipeFile, locked: Lock, path: Path, tools: Tools, *, archive: Path | None) -> None:
    """Write an Apptainer definition file; from an OCI archive if one is given, else from the local engine."""
    image = build_recipe(source, locked, tools)
    write_atomic(path, definition(source.recipe, locked, image, path=path, archive=archive).encode())


def check_dockerfile(source: RecipeFile, locked: Lock, tools: Tools) -> None:
    """Build the rendered Dockerfile with the engine alone and compare every path with the assembled image.

    Raises BuildFailedError with the differences that are not tolerated.
    """
    image = build_recipe(source, locked, tools)
    materials = mended(tools.store, lambda: _all_materials(source, locked, tools), tools.console.warn)
    tag, python = f"envbuild/{source.recipe.name}:dockerfile", _interpreter(source, locked)
    with tools.console.step(f"build dockerfiles/{source.recipe.name}/Dockerfile and compare") as step:
        try:
            _build_dockerfile(source, locked, materials, tag, tools)
            step.detail("walking both images")
            trees = [image_tree(each, python, engine=tools.engine, store=tools.store) for each in (tag, image.image_id)]
        finally:
            tools.engine.remove_image(tag)
        refuse_differences(differences(*trees), source.recipe.name, tools.console.say)
        step.end(f"{len(trees[0].files)} paths agree")


def _interpreter(source: RecipeFile, locked: Lock) -> str:
    return image_venv(source.recipe, locked).base_interpreter


def _build_dockerfile(source: RecipeFile, locked: Lock, materials: Materials, tag: str, tools: Tools) -> None:
    with (
        tools.console.step("build with the engine alone") as step,
        tools.store.scratch() as scratch,
    ):
        context = scratch / "context"
        write_folder(image_context(source, locked, materials, tools.store), context, link=True)
        dockerfile = _on_local_base((context / "Dockerfile").read_text(encoding="utf-8"), locked, tools)
        job = ImageBuild(dockerfile=dockerfile, context=context, tag=tag)
        tools.engine.build(job, show_lines(step, tools.console))


def _on_local_base(dockerfile: str, locked: Lock, tools: Tools) -> str:
    """Return a Dockerfile that begins with the same layers under a local name: a build pulls nothing."""
    base = locked.file.base
    if base is None:
        return dockerfile
    local = load_base(image_layers(base), epoch=locked.epoch, engine=tools.engine, store=tools.store)
    return dockerfile.replace(f"FROM {base.reference} ", f"FROM {local} ", 1)


def _all_materials(source: RecipeFile, locked: Lock, tools: Tools) -> Materials:
    materials = gather_materials(source, locked, tools)
    _fetch_wheels(source, locked, tools)
    wheels = (*locked.toolchain_wheels, *locked.compiler_wheels)
    with tools.console.step(
        f"fetch what compiles: {len(locked.toolchain_debs)} packages, {len(wheels)} wheels"
    ) as step:
        fetch_debs(locked.base_debs, tools.store, tools.settings, show_progress(step))
        fetch_debs(locked.toolchain_debs, tools.store, tools.settings, show_progress(step))
        fetch_wheels(wheels, tools.store, tools.settings, show_progress(step), indexes=source.recipe.indexes)
        for wish in wishes_of(source, tools.store, tools.settings):
            restore_source(locked.sources[wish.project], wish)
    return materials


def _fetch_wheels(source: RecipeFile, locked: Lock, tools: Tools) -> None:
    with tools.console.step(f"fetch {len(locked.wheels)} wheels") as step:
        indexes = source.recipe.indexes
        fetch_wheels(locked.wheels, tools.store, tools.settings, show_progress(step), indexes=indexes)
