"""How an image was made, as SLSA provenance v1: the question, everything that went in by hash, and who assembled it."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from builder.build.compression import COMPRESSIONS
from builder.build.layers import LAYOUT
from builder.lock.model import LockedGit
from builder.publish.sbom import deb_url, git_url, image_url, wheel_url

if TYPE_CHECKING:
    from builder.lock.model import Lock, LockedSdist
    from builder.publish.gate import ProvenImage

BUILD_TYPE = "urn:envbuild:recipe:v1"
BUILDER = "urn:envbuild:builder:v1"


def provenance_of(image: ProvenImage) -> dict[str, Any]:
    """Return the predicate (https://slsa.dev/spec/v1.0/provenance): the same for the same image."""
    recipe, lock = image.recipe, image.lock
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "recipe": recipe.name,
                "target": recipe.target.to_plain(),
                "question": lock.file.question,
            },
            "internalParameters": {
                "lock": lock.digest,
                "imageId": image.image.config_digest,
                "layout": LAYOUT,
                "compressor": COMPRESSIONS[recipe.compression].compressor,
                "tools": dict(lock.file.tools),
            },
            "resolvedDependencies": _materials(image),
        },
        "runDetails": {
            "builder": {"id": BUILDER, "version": {"envbuild": version("envbuild")}},
            "metadata": {"invocationId": f"{lock.digest}:{image.image.config_digest}"},
        },
    }


def _materials(image: ProvenImage) -> list[dict[str, Any]]:
    """Return every file that went in, and what compiled it; the compiled wheels are made here, so not among them."""
    lock = image.lock
    suite = lock.file.debian.suite if lock.file.debian else ""
    base = [lock.file.base] if lock.file.base else []
    found = [
        *(_material(deb_url(deb, suite), deb.sha256) for deb in (*lock.base_debs, *lock.toolchain_debs)),
        *(_material(image_url(image), image.digest.removeprefix("sha256:")) for image in base),
        *(_material(wheel_url(wheel.name, wheel.version), wheel.sha256, wheel.filename) for wheel in _wheels(lock)),
        *(_source(source) for source in lock.sources.values()),
        *(
            {"name": job.name, "uri": f"urn:envbuild:source:{job.name}", "digest": {"envbuildTree": job.source_digest}}
            for job in image.jobs
            if job.name not in lock.sources
        ),
    ]
    unique = {(item["uri"], str(item["digest"])): item for item in found}
    return [unique[key] for key in sorted(unique)]


def _wheels(lock: Lock) -> tuple[Any, ...]:
    return (*lock.wheels, *lock.toolchain_wheels, *lock.compiler_wheels)


def _source(source: LockedGit | LockedSdist) -> dict[str, Any]:
    if isinstance(source, LockedGit):
        return {"name": source.name, "uri": git_url(source), "digest": {"gitCommit": source.commit}}
    return _material(wheel_url(source.name, source.version), source.sha256, source.filename)


def _material(url: str, sha256: str, name: str = "") -> dict[str, Any]:
    return {**({"name": name} if name else {}), "uri": url, "digest": {"sha256": sha256}}
