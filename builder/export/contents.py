"""What goes into each parcel: pure lists of files, every file of the store proven before it leaves."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import TYPE_CHECKING

import builder.build
from builder.build.assembly import plan_image, settled_layouts
from builder.build.base import base_identity, deb_filename
from builder.build.papers import image_papers
from builder.build.render import render_dockerfiles
from builder.document import hashes_in, tree_files
from builder.errors import UsageError
from builder.export.parcel import Item
from builder.lock.lockfile import PYLOCK
from builder.lock.pylock import FOLDER
from builder.recipe.workspace import workspace_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from builder.build.base import RootFilesystem
    from builder.build.stage import Materials
    from builder.build.wheels import BuiltWheel
    from builder.lock.model import Lock, LockedWheel
    from builder.recipe.source import RecipeFile
    from builder.store import Store

TOOLS = ("compile_inside.py", "compile_installed.py")
LAST = "last.txt"  # wheels that lie over others, for installers without an order: uv, and pip without requirements
TOOLCHAIN = "toolchain"

_README = """\
An envbuild kit: {name} and everything that it is made of, for a machine without a network.

    ENVBUILD_STORE=$PWD/store envbuild make --locked {recipe}

compiles nothing and fetches nothing: it assembles the image, loads it into the engine and proves it. The machine needs
envbuild, and a Docker engine. Every file below store/files is named by the sha256 of its bytes.
"""


def image_context(source: RecipeFile, locked: Lock, materials: Materials, store: Store) -> tuple[Item, ...]:
    """Return the build context of the rendered Dockerfile: the files that its head comment lists."""
    files = render_dockerfiles(source.recipe, locked)
    built = [Item(name=f"wheels/{wheel.filename}", content=store.sound(wheel.sha256)) for wheel in materials.built]
    pip = [wheel for wheel in locked.toolchain_wheels if wheel.name == "pip"]
    scripts = Path(builder.build.__file__).parent
    return (
        *(_base_tar(materials.rootfs, store)),
        *_wheels(locked.wheels, "wheels", store),
        *built,
        *_wheels(pip, "tools", store),
        *(Item(name=f"tools/{name}", content=scripts / name) for name in TOOLS),
        Item(name=f"tools/{LAST}", content=_last(source, locked, materials.built, store)),
        *(Item(name=name, content=files[name].encode()) for name in ("requirements.txt", "Dockerfile")),
        *(
            Item(name=f"papers/{posixpath.basename(paper.path)}", content=paper.content)
            for paper in image_papers(source.recipe, locked)
            if isinstance(paper.content, bytes)
        ),
        Item(name=".dockerignore", content=f"{TOOLCHAIN}\n".encode()),
    )


def toolchain_context(source: RecipeFile, locked: Lock, store: Store) -> tuple[Item, ...]:
    """Return the build context of Dockerfile.toolchain, in a folder of its own; nothing where nothing is compiled."""
    files = render_dockerfiles(source.recipe, locked)
    names = [name for name in files if name not in {"Dockerfile", "requirements.txt"}]
    if not names:
        return ()
    debs, wheels = locked.toolchain_debs, {*locked.toolchain_wheels, *locked.compiler_wheels}
    return (
        *(Item(name=f"{TOOLCHAIN}/debs/{deb_filename(deb)}", content=store.sound(deb.sha256)) for deb in debs),
        *_wheels(sorted(wheels), f"{TOOLCHAIN}/wheels", store),
        *(Item(name=f"{TOOLCHAIN}/{name}", content=files[name].encode()) for name in names),
    )


def wheels_folder(source: RecipeFile, locked: Lock, store: Store) -> tuple[Item, ...]:
    """Return `pylock.toml` with the folder of wheels that it names; the lock comes last, when it is true.

    Raises BuildFailedError if one environment cannot hold them.
    """
    lock = workspace_of(source).lock / PYLOCK
    return (
        *_wheels(locked.wheels, FOLDER, store),
        Item(name=LAST, content=_last(source, locked, (), store)),
        Item(name=PYLOCK, content=lock.read_bytes()),
    )


def kit(source: RecipeFile, locked: Lock, materials: Materials, store: Store) -> tuple[Item, ...]:
    """Return a project with one recipe and a store with all that its lock names, the base and the compiled wheels."""
    root, recipe = workspace_of(source).root, _relative(source.path.resolve(), source)
    folders = (workspace_of(source).lock, workspace_of(source).dockerfiles)
    bootstrapped = [("base", base_identity(locked))] if materials.rootfs else []
    records = [*bootstrapped, *(("wheel", job.key) for job in materials.jobs)]
    made = {*([materials.rootfs.sha256] if materials.rootfs else []), *(wheel.sha256 for wheel in materials.built)}
    mentioned = {sha256 for path in folders[0].iterdir() for sha256 in hashes_in(path.read_bytes())}
    return (
        Item(name="README.txt", content=_README.format(name=source.recipe.name, recipe=recipe).encode()),
        Item(name=recipe, content=source.path),
        *(item for folder in _own_folders(source) for item in _tree(folder, source)),
        *(Item(name=path.relative_to(root).as_posix(), content=path) for folder in folders for path in _files(folder)),
        *(_stored(store.record(kind, key), store) for kind, key in records),
        *(_stored(store.sound(sha256), store) for sha256 in sorted(made | mentioned) if store.has(sha256)),
    )


def _base_tar(rootfs: RootFilesystem | None, store: Store) -> tuple[Item, ...]:
    return (Item(name="base.tar", content=store.sound(rootfs.sha256)),) if rootfs else ()


def _wheels(wheels: Iterable[LockedWheel], folder: str, store: Store) -> Iterator[Item]:
    for wheel in wheels:
        yield Item(name=f"{folder}/{wheel.filename}", content=store.sound(wheel.sha256))


def _last(source: RecipeFile, locked: Lock, built: tuple[BuiltWheel, ...], store: Store) -> bytes:
    """Return the wheels to install once more after all others, in this order: a requirement and a file name a line."""
    plan = plan_image(source.recipe, locked, base_identity(locked), built, store)
    last = [f"{wheel.name}=={wheel.version} {wheel.filename}\n" for wheel in settled_layouts(plan, store).last]
    return "".join(last).encode()


def _stored(path: Path, store: Store) -> Item:
    return Item(name=f"store/{path.relative_to(store.root).as_posix()}", content=path)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []


def _own_folders(source: RecipeFile) -> list[Path]:
    """Return the source folders and patches that lie beside the recipe."""
    packages = source.recipe.stack.values()
    names = [name for package in packages for name in (package.path, *package.patches) if name is not None]
    return [(source.folder / name).resolve() for name in names]


def _tree(folder: Path, source: RecipeFile) -> Iterator[Item]:
    for path in tree_files(folder) if folder.is_dir() else (folder,):
        executable = bool(path.stat().st_mode & 0o100)
        yield Item(name=_relative(path, source), content=path, mode=0o755 if executable else 0o644)


def _relative(path: Path, source: RecipeFile) -> str:
    root = workspace_of(source).root
    if not path.is_relative_to(root):
        raise UsageError(f"{path} lies outside the project {root}, so a kit cannot hold it", remedy="move it inside")
    return path.relative_to(root).as_posix()
