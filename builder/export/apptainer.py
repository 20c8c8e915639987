"""An Apptainer definition file for the image: text only, for clusters that run no Docker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.build.environment import one_line

if TYPE_CHECKING:
    from pathlib import Path

    from builder.build.assembly import BuiltImage
    from builder.lock.model import Lock
    from builder.recipe.model import Recipe

_TEMPLATE = """\
Bootstrap: {bootstrap}
From: {origin}

# {name}: {description}
# The image with the id {image_id}; its registry digest is {manifest_digest}.
# Build it with `apptainer build {name}.sif {file}`, run it with `apptainer run --nv {name}.sif`.

%labels
    dev.envbuild.recipe {name}
    dev.envbuild.lock {lock}
    dev.envbuild.image {image_id}

%runscript
    exec "${{@:-python3}}"

%test
    test -x /opt/env/bin/python
"""


def definition(recipe: Recipe, lock: Lock, image: BuiltImage, *, path: Path, archive: Path | None = None) -> str:
    """Return the definition that makes the image from an OCI archive, or from the local Docker engine without one.

    Environment variables come with the image itself.
    """
    return _TEMPLATE.format(
        bootstrap="docker-daemon" if archive is None else "oci-archive",
        origin=image.reference if archive is None else archive,
        name=recipe.name,
        description=one_line(recipe.description) or "an inference stack",
        image_id=image.image_id,
        manifest_digest=image.manifest_digest,
        lock=lock.digest,
        file=path.name,
    )
