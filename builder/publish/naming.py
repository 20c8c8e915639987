"""The tags of a published image: one that never moves and says what is in it, and shorter ones that move."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builder.publish.aliases import MARK, companion
from builder.recipe.targets import find_target

if TYPE_CHECKING:
    from builder.lock.model import Lock
    from builder.publish.gate import ProvenImage
    from builder.recipe.model import Package

LONGEST = 128  # characters of a tag (OCI distribution specification 1.1)
ROOM = LONGEST - MARK - 1  # of a tag that moves, which leaves some for its companion
LOCK, COMMIT = 12, 8  # hexadecimal digits
_NOT_IN_A_TAG = re.compile(r"[^A-Za-z0-9_.-]+")


def fixed_tag(image: ProvenImage) -> str:
    """Return the tag that names this image alone, such as `glm5-sm120-cu131-torch2.9.1-sglang0123abcd-LOCK-IMAGE`.

    A lock does not fix folders beside the recipe and envbuild's own layout, so the image's digest is a part of it.
    """
    return companion(lock_tag(image), image.digest)


def moving_tags(image: ProvenImage) -> tuple[str, ...]:
    """Return the tags that move to newer images: by lock, by stack, by recipe."""
    return tuple(dict.fromkeys((lock_tag(image), stack_tag(image, ROOM), _clean(image.recipe.name)[:ROOM])))


def lock_tag(image: ProvenImage) -> str:
    """Return the tag of the newest image of a lock."""
    return f"{stack_tag(image, ROOM - LOCK - 1)}-{image.lock.digest[:LOCK]}"


def stack_tag(image: ProvenImage, room: int) -> str:
    """Return the tag of the newest lock of a stack: its name, GPU, CUDA, torch and serving engine."""
    recipe = image.recipe
    name = _clean(recipe.name)
    parts = [find_target(recipe.target.gpu).arch.replace("_", "")]
    if recipe.cuda is not None:
        parts.append(f"cu{recipe.cuda.replace('.', '')}")
    told = dict.fromkeys(("torch", recipe.serve.engine if recipe.serve else "transformers"))
    packages = [package for package in told if package in recipe.stack]
    parts += [f"{package}{_release(package, recipe.stack[package], image.lock)}" for package in packages]
    said = set(name.split("-"))
    return "-".join([name, *(_clean(part) for part in parts if part not in said)])[:room].rstrip("-._")


def _release(name: str, package: Package, lock: Lock) -> str:
    """Return the version without its local part, or the beginning of the commit."""
    if package.commit is not None:
        return package.commit[:COMMIT]
    locked = {wheel.name: wheel.version for wheel in lock.wheels}
    return (package.version or locked.get(canonicalize_name(name), "")).partition("+")[0]


def _clean(text: str) -> str:
    return _NOT_IN_A_TAG.sub("-", text).strip("-.")
