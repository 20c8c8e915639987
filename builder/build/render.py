"""Render the Dockerfiles of a recipe and its lock: the readable specification, committed and checked."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined

from builder.build.environment import image_environment, image_labels, image_venv, one_line
from builder.build.papers import PAPERS
from builder.document import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from builder.lock.model import Lock, LockedWheel
    from builder.recipe.model import Recipe


FILES = (
    "Dockerfile",
    "Dockerfile.toolchain",
    "requirements.compiler.txt",
    "requirements.toolchain.txt",
    "requirements.txt",
)


def render_dockerfiles(recipe: Recipe, lock: Lock) -> dict[str, str]:
    """Return the rendered files by name (of `FILES`): the image's and, where something is compiled, the toolchain's."""
    templates = _templates()
    built = sorted(name for name, package in recipe.stack.items() if package.from_source)
    values = {
        "recipe": recipe,
        "description": one_line(recipe.description) or "an inference stack",
        "suite": lock.file.debian.suite if lock.file.debian else "",
        "image": lock.file.base.reference if lock.file.base else "",
        "user": lock.file.base.user if lock.file.base else None,
        "base": lock.base_debs,
        "debs": lock.toolchain_debs,
        "built": built,
        "wheels": lock.wheels,
        "python": f"python{recipe.python}",
        "pip": _wheel(lock.toolchain_wheels, "pip"),
        "venv": image_venv(recipe, lock),
        "compiler": _compiler(lock.compiler_wheels or lock.toolchain_wheels),
        "separate": bool(lock.compiler_wheels),
        "cuda_major": (recipe.cuda or "").partition(".")[0],
        "environment": image_environment(recipe, lock),
        "labels": image_labels(recipe, lock),
        "papers": PAPERS,
    }
    files = {
        "Dockerfile": templates.get_template("Dockerfile.j2").render(values),
        "requirements.txt": _requirements(lock.wheels),
    }
    if built:
        files["Dockerfile.toolchain"] = templates.get_template("Dockerfile.toolchain.j2").render(values)
        files["requirements.toolchain.txt"] = _requirements(lock.toolchain_wheels)
    if lock.compiler_wheels:
        files["requirements.compiler.txt"] = _requirements(lock.compiler_wheels)
    return files


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("builder.build", "dockerfiles"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Dockerfiles are no HTML
    )
    templates.filters["quoted"] = quoted
    return templates


def quoted(text: str) -> str:
    """Return a text in double quotes as a Dockerfile reads it: nothing in it is a variable or ends it."""
    return '"' + re.sub(r'(["\\$])', r"\\\1", text) + '"'


def write_dockerfiles(files: dict[str, str], folder: Path) -> tuple[str, ...]:
    """Write the rendered files that differ, remove those that are rendered no more; return the names that changed."""
    changed = stale_dockerfiles(files, folder)
    for name in changed:
        if name in files:
            write_atomic(folder / name, files[name].encode())
        else:
            (folder / name).unlink()
    return changed


def stale_dockerfiles(files: dict[str, str], folder: Path) -> tuple[str, ...]:
    """Return the names of committed files that are not what the recipe and the lock render to.

    Files of other names beside them are a person's own: an editor's, say.
    """
    wanted = {name: text.encode() for name, text in files.items()}
    present = {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}
    return tuple(sorted(name for name in {*wanted, *present} if wanted.get(name) != present.get(name)))


def _requirements(wheels: Iterable[LockedWheel]) -> str:
    return "".join(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in wheels)


def _wheel(wheels: Iterable[LockedWheel], name: str) -> str:
    return next((wheel.filename for wheel in wheels if wheel.name == name), "")


def _compiler(wheels: Iterable[LockedWheel]) -> str:
    version = next((wheel.version for wheel in wheels if wheel.name == "nvidia-cuda-nvcc"), "")
    return f"nvcc {version}" if version else ""
