"""A shell in the image: the command line of the user's own Docker client."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.recipe.model import Recipe

GPU_DEVICE = Path("/dev/nvidiactl")
SHELL = ("/bin/bash",)


def shell_command(image: str, recipe: Recipe, command: Sequence[str], *, terminal: bool, gpu: bool) -> tuple[str, ...]:
    """Return the `docker run` that starts a command, or a shell, in an image; the container goes when it ends.

    Shared memory and IPC are as the recipe serves. `terminal` asks for one in the container, `gpu` for all GPUs.
    """
    serve = recipe.serve
    return (
        *("docker", "run", "--rm", "--interactive"),
        *(("--tty",) if terminal else ()),
        *(("--gpus", "all") if gpu else ()),
        *(("--shm-size", serve.shm_size) if serve and serve.shm_size else ()),
        *(("--ipc", serve.ipc) if serve and serve.ipc else ()),
        *("--entrypoint", ""),
        image,
        *(command or SHELL),
    )
