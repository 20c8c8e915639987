"""The toolchain image: the base, the locked compiler packages, the CUDA compiler's wheels; built once by key."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from builder.document import key_of
from builder.engine import ImageBuild

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from builder.engine import Engine
    from builder.lock.model import Lock, LockedWheel
    from builder.store import Store

REQUIREMENTS = frozenset({"requirements.toolchain.txt", "requirements.compiler.txt"})


def toolchain_key(dockerfile: str, base_key: str, lock: Lock) -> str:
    """Return the key of a toolchain: what its Dockerfile does, its base and every file that goes into it.

    Comments do not count, so recipes with the same toolchain share it and all that it compiled.
    """
    compiler = {"compiler": [wheel.sha256 for wheel in lock.compiler_wheels]} if lock.compiler_wheels else {}
    instructions = [line for line in dockerfile.splitlines() if line and not line.startswith("#")]
    return key_of(
        {
            "dockerfile": instructions,
            "base": base_key,
            "debs": [deb.sha256 for deb in lock.toolchain_debs],
            "wheels": [wheel.sha256 for wheel in lock.toolchain_wheels],
            **compiler,
        }
    )


def compilers_digest(lock: Lock) -> str:
    """Return the digest of what object files depend on besides their sources: the compilers and the system's headers.

    The headers of Python packages are not in it: a compiler's cache reads them as sources.
    """
    wheels = lock.compiler_wheels or lock.toolchain_wheels
    return key_of(
        {
            "debs": [deb.sha256 for deb in lock.toolchain_debs],
            "cuda": [wheel.sha256 for wheel in wheels if wheel.name.startswith(("nvidia-cuda-", "nvidia-nvvm"))],
        }
    )


def toolchain_tag(key: str) -> str:
    """Return the local tag of the toolchain image with this key."""
    return f"envbuild/toolchain:{key[:16]}"


def has_toolchain(key: str, engine: Engine, store: Store) -> bool:
    """Say whether the engine has the finished toolchain image of this key."""
    record = store.result("toolchain", key)
    return record is not None and engine.image_id(toolchain_tag(key)) == record["image_id"]


def build_toolchain(
    files: dict[str, str],
    *,
    key: str,
    base: str,
    lock: Lock,
    engine: Engine,
    store: Store,
    fill_debs: Callable[[Path], object],
    on_line: Callable[[str], None],
) -> str:
    """Build the toolchain image from the rendered `files` and return its tag."""
    tag = toolchain_tag(key)
    with store.exclusive(f"toolchain-{key}"):
        if has_toolchain(key, engine, store):
            return tag
        with store.scratch() as context:
            (context / "debs").mkdir()
            fill_debs(context / "debs")
            wheels_folder({*lock.toolchain_wheels, *lock.compiler_wheels}, store, context / "wheels")
            for name in REQUIREMENTS & {*files}:
                (context / name).write_text(files[name], encoding="utf-8")
            image_id = engine.build(
                ImageBuild(
                    dockerfile=files["Dockerfile.toolchain"], context=context, tag=tag, arguments={"BASE": base}
                ),
                on_line,
            )
        store.keep_result("toolchain", key, {"image_id": image_id})
    return tag


def wheels_folder(wheels: Iterable[LockedWheel], store: Store, folder: Path) -> None:
    """Fill a folder with wheels from the store under their own names, as links where the disk allows it."""
    folder.mkdir(exist_ok=True)
    for wheel in wheels:
        os.link(store.sound(wheel.sha256), folder / wheel.filename)
