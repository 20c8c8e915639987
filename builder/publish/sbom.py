"""The bill of materials of an image, in CycloneDX 1.6: every package of the lock, its hash and its licences."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from builder.lock.model import LockedGit
from builder.publish.licences import debian_licences, wheel_licences

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.build.wheelfile import WheelInput
    from builder.lock.model import Lock, LockedDeb, LockedImage, LockedSdist
    from builder.publish.gate import ProvenImage

FORM = 1  # of what is made here of the same image: a part of the key under which it is kept
_NAMESPACE = uuid.UUID("b1ab3a68-65a7-4d1c-8a43-6a5e4c3f7a10")
_SAFE = ".-_~"


def bill_of(image: ProvenImage, rootfs: Path | None) -> dict[str, Any]:
    """Return the bill of an image: the same for the same image. `rootfs` is its bootstrapped base as a tar."""
    lock = image.lock
    licences = debian_licences(rootfs) if rootfs else {}
    components = [
        *(_wheel(wheel, lock) for wheel in image.wheels),
        *(_deb(deb, lock, licences.get(deb.name, [])) for deb in lock.base_debs),
        *(_base_image(lock.file.base) if lock.file.base else ()),
        *(_source(source) for source in lock.sources.values()),
    ]
    components.sort(key=lambda component: component["bom-ref"])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, image.digest)}",
        "version": 1,
        "metadata": _metadata(image),
        "components": components,
        "dependencies": [{"ref": "image", "dependsOn": [component["bom-ref"] for component in components]}],
    }


def deb_url(deb: LockedDeb, suite: str) -> str:
    """Return the package URL of a Debian package."""
    name, release = quote(deb.name, safe=_SAFE), quote(deb.version, safe=_SAFE)
    return f"pkg:deb/debian/{name}@{release}?arch={deb.architecture}&distro={suite}"


def wheel_url(name: str, release: str) -> str:
    """Return the package URL of a Python package."""
    return f"pkg:pypi/{name}@{quote(release, safe=_SAFE)}"


def git_url(source: LockedGit) -> str:
    """Return the address of a commit, as SPDX and SLSA write it."""
    return f"git+{source.url}@{source.commit}"


def _metadata(image: ProvenImage) -> dict[str, Any]:
    tool = {"type": "application", "name": "envbuild", "version": version("envbuild")}
    return {
        "timestamp": datetime.fromtimestamp(image.lock.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "tools": {"components": [tool]},
        "component": {
            "type": "container",
            "bom-ref": "image",
            "name": image.recipe.name,
            "version": image.digest,
            "properties": [
                {"name": "envbuild:lock", "value": image.lock.digest},
                {"name": "envbuild:target", "value": image.recipe.target.gpu},
            ],
        },
    }


def _wheel(wheel: WheelInput, lock: Lock) -> dict[str, Any]:
    url = wheel_url(wheel.name, wheel.version)
    component = {**_component(wheel.name, wheel.version, url, wheel.sha256), **_licensed(wheel_licences(wheel.path))}
    compiled = wheel.sha256 not in {locked.sha256 for locked in lock.wheels}
    named = [{"name": "envbuild:file", "value": wheel.filename}]
    return {
        **component,
        "properties": [*named, *([{"name": "envbuild:compiled", "value": "true"}] if compiled else [])],
    }


def _deb(deb: LockedDeb, lock: Lock, licences: list[dict[str, Any]]) -> dict[str, Any]:
    url = deb_url(deb, lock.file.debian.suite if lock.file.debian else "")
    return {**_component(deb.name, deb.version, url, deb.sha256), **_licensed(licences)}


def image_url(base: LockedImage) -> str:
    """Return the package URL of a base image."""
    repository = base.reference.partition("@")[0]
    name = repository.rpartition("/")[2]
    return f"pkg:oci/{name}@{quote(base.digest, safe=_SAFE)}?repository_url={quote(repository, safe=_SAFE)}"


def _base_image(base: LockedImage) -> Iterator[dict[str, Any]]:
    """Yield a base image and the packages that its own list names: their files have no hashes of their own."""
    sha256 = base.digest.removeprefix("sha256:")
    yield {**_component(base.image, base.digest, image_url(base), sha256), "type": "container"}
    for name, release in base.packages.items():
        yield {"type": "library", "bom-ref": f"base:{name}@{release}", "name": name, "version": release}


def _source(source: LockedGit | LockedSdist) -> dict[str, Any]:
    """Return what a package was compiled from; the compiled wheel is a component of its own."""
    if not isinstance(source, LockedGit):
        url = f"{wheel_url(source.name, source.version)}?file_name={quote(source.filename, safe=_SAFE)}"
        return {**_component(source.name, source.version, url, source.sha256), **_pedigree([], len(source.patches))}
    url = f"pkg:generic/{source.name}@{source.commit}?vcs_url={quote(git_url(source), safe=_SAFE)}"
    commits = [{"uid": source.commit, "url": source.url}]
    return {
        **_component(source.name, source.commit, url, source.archive),
        "externalReferences": [{"type": "vcs", "url": source.url}],
        **_pedigree(commits, len(source.patches)),
    }


def _component(name: str, release: str, url: str, sha256: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": url,
        "name": name,
        "version": release,
        "purl": url,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
    }


def _licensed(licences: list[dict[str, Any]]) -> dict[str, Any]:
    return {"licenses": licences} if licences else {}


def _pedigree(commits: list[dict[str, str]], patches: int) -> dict[str, Any]:
    told = {"commits": commits, "patches": [{"type": "unofficial"}] * patches}
    pedigree = {name: value for name, value in told.items() if value}
    return {"pedigree": pedigree} if pedigree else {}
