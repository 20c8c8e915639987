"""Docker as an `Engine`: anything that speaks the Docker API from 1.41 (Engine 20.10) on."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import time
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from docker import APIClient
from docker.errors import APIError, NotFound

from builder.dockerd.buildkit import BuildLog, decode_trace
from builder.dockerd.containers import remove_leftovers, run_container
from builder.dockerd.context import context_tar, named_images
from builder.dockerd.devices import gpus_in
from builder.dockerd.faults import MAKE_ROOM, disk_free, engine_errors, out_of_disk
from builder.dockerd.image_facts import facts_of
from builder.dockerd.names import config_of, id_of, in_containerd, name_of
from builder.dockerd.reach import place_of, reach
from builder.dockerd.stream import error_in, exchange
from builder.engine import EngineFacts, LocalImage, chain_of
from builder.errors import BuildFailedError, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from builder.dockerd.buildkit import FailedStep
    from builder.engine import ContainerRun, Exit, ImageBuild, ImageFacts
    from builder.settings import Settings

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
SCHEMES = ("unix://", "tcp://", "http://", "ssh://")
MINIMUM_API = (1, 41)
HELLO_SECONDS = 20
CALL_SECONDS = 300

_CONTAINERD_STORE = ["driver-type", "io.containerd.snapshotter.v1"]  # in `docker info`'s DriverStatus
_CONTAINERD_ADDRESS = "/run/containerd/containerd.sock"  # of the system's own containerd, and where it keeps images
_CONTAINERD_ROOT = "/var/lib/containerd"
_CONTAINERD_API = (1, 48)  # from here on the engine says which images lie in that store, and what their archive said
_NOT_UNPACKED = re.compile(r"Error unpacking image (\S+): (.*)", re.DOTALL)
_Answer = TypeVar("_Answer")
_PAUSES = (0.05, 0.2, 0.5, 1.0)  # seconds
_NAME_CHARACTERS = 200
_KILLED = 137


def connect(settings: Settings, *, hello_seconds: int = HELLO_SECONDS) -> DockerEngine:
    """Connect to the engine of the settings and remove what killed runs left on it; raise EngineError with a remedy."""
    place = place_of(settings.engine_host or DEFAULT_ADDRESS, settings)
    address = place.address
    if not address.startswith(SCHEMES):
        raise EngineError(
            f"DOCKER_HOST={address} is no address that envbuild can use", remedy="give unix://, tcp:// or ssh://"
        )
    reached = reach(place)
    try:
        with engine_errors(address):
            _knock(reached, hello_seconds)
            client = APIClient(base_url=reached, version="auto", timeout=hello_seconds)
    except ValueError as error:
        raise EngineError(
            f"DOCKER_HOST={address} is no address: {error}", remedy="give unix:///path or tcp://host:port"
        ) from error
    if _version(client.api_version) < MINIMUM_API:
        client.close()
        raise EngineError(
            f"the engine at {address} speaks the Docker API {client.api_version}, envbuild needs 1.41",
            remedy="install Docker Engine 20.10 or newer",
        )
    client.timeout = CALL_SECONDS
    remove_leftovers(client, address=address)
    return DockerEngine(client, address, settings.gpus)


def _knock(address: str, seconds: float) -> None:
    """Open the engine's socket once: docker-py leaves a socket open that it could not connect."""
    if address.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(seconds)
            probe.connect(address.removeprefix("unix://"))


class DockerEngine:
    """The `Engine` protocol on a Docker engine; made by `connect`."""

    def __init__(self, client: APIClient, address: str, gpus: tuple[str, ...] = ()) -> None:
        self._client = client
        self._address = address
        self._gpus = gpus

    def facts(self) -> EngineFacts:
        """Return what the engine says of itself; raise EngineError if it cannot be used."""
        info = self._info()
        self._need_known_store(info)
        containerd = _CONTAINERD_STORE in (info.get("DriverStatus") or [])
        own = (info.get("Containerd") or {}).get("Address") != _CONTAINERD_ADDRESS
        return EngineFacts(
            version=info["ServerVersion"],
            api_version=self._client.api_version,
            operating_system=info["OperatingSystem"],
            cpus=info["NCPU"],
            memory=info["MemTotal"],
            storage_driver=info["Driver"],
            root=info["DockerRootDir"] if own or not containerd else _CONTAINERD_ROOT,
            containerd=containerd,
            host=info["Name"],
            gpus=gpus_in(info),
        )

    def image_id(self, reference: str) -> str | None:
        """Return the id of a local image (`sha256:…`), or None; never pulls."""
        image = self._inspect(reference)
        return None if image is None else id_of(image)

    def image_facts(self, reference: str) -> ImageFacts | None:
        """Return what a local image says of itself, or None; never pulls."""
        image = self._inspect(reference)
        if image is None:
            return None
        with engine_errors(self._address):
            history = self._client.history(image["Id"])  # type: ignore[no-untyped-call]
        return facts_of(image, history)

    def local_images(self) -> tuple[LocalImage, ...]:
        """Return all local images, those without a tag too."""
        with engine_errors(self._address):
            used = {str(container["ImageID"]) for container in self._client.containers(all=True)}
        return tuple(
            LocalImage(
                image_id=id_of(image),
                references=tuple(tag for tag in image["RepoTags"] or () if not tag.startswith("<none>")),
                size=int(image["Size"]),
                in_use=str(image["Id"]) in used,
            )
            for image in self._images()
        )

    def chain_ids(self) -> frozenset[str]:
        """Return the chain ids of the layers of local images that an archive may leave out.

        The containerd image store finds a layer by the digest of the bytes that it came in, so there it is those of
        images that an archive of envbuild's, which has them unpacked, brought.
        """
        ids = {str(image["Id"]) for image in self._images() if not in_containerd(image) or config_of(image)}
        images = [self._inspected(image_id) for image_id in sorted(ids)]
        return frozenset(
            chain for image in images if image is not None for chain in chain_of(image["RootFS"].get("Layers") or [])
        )

    def load(self, archive: Iterable[bytes]) -> None:
        """Stream an archive of `builder.build.image` into the engine; layers that it has may be missing in it."""
        if not self._tells_of_its_store:
            self._need_known_store(self._info())
        answer = exchange(self._client, "/images/load", parameters={"quiet": "1"}, body=archive, address=self._address)
        with contextlib.closing(answer):
            for message in answer:
                error = error_in(message)
                if error is not None:
                    raise self._failure("the engine could not load an image", error)
                if broken := _NOT_UNPACKED.match(str(message.get("stream", ""))):
                    with contextlib.suppress(EngineError):  # the containerd image store keeps what cannot be run
                        self.remove_image(broken[1])
                    raise self._failure("the engine could not load an image", broken[2].strip())

    def run(self, job: ContainerRun, on_line: Callable[[str], None] | None = None) -> Exit:
        """Run a container to its end and remove it; the program's exit code is an answer, not an error.

        `on_line` sees the lines of standard error live. Of very long output the middle is left out.
        """
        job = replace(job, image=self._own(job.image))
        return run_container(self._client, job, on_line, address=self._address, gpus=self._gpus)

    def build(self, job: ImageBuild, on_line: Callable[[str], None] | None = None) -> str:
        """Build an image with BuildKit and return its id; raise BuildFailedError naming the failed step.

        `on_line` sees the names of the steps and the lines that they write, live.
        """
        self._need_images(job)
        log = BuildLog(on_line)
        image_id = None
        answer = exchange(
            self._client,
            "/build",
            parameters=_build_parameters(job),
            body=context_tar(job.context, job.dockerfile),
            address=self._address,
        )
        with contextlib.closing(answer):
            for message in answer:
                error = error_in(message)
                if error is not None:
                    raise self._build_failure(job, error, log.failed())
                if message.get("id") == "moby.buildkit.trace":
                    log.see(decode_trace(base64.b64decode(message["aux"])))
                elif message.get("id") == "moby.image.id":
                    image_id = str(message["aux"]["ID"])
        if image_id is None:
            raise EngineError(f"the engine at {self._address} ended the build of {job.tag} without a result")
        return image_id

    def remove_image(self, reference: str) -> None:
        """Remove a local image or tag, if it is there."""
        with engine_errors(self._address), contextlib.suppress(NotFound):
            self._client.remove_image(self._own(reference), force=True)

    def _info(self) -> dict[str, Any]:
        with engine_errors(self._address):
            info: dict[str, Any] = self._client.info()
            return info

    @property
    def _tells_of_its_store(self) -> bool:
        return _version(self._client.api_version) >= _CONTAINERD_API

    def _need_known_store(self, info: Mapping[str, Any]) -> None:
        """Raise EngineError for the containerd image store of an engine that does not tell what lies in it."""
        if not self._tells_of_its_store and _CONTAINERD_STORE in (info.get("DriverStatus") or []):
            raise EngineError(
                f"Engine {info['ServerVersion']} at {self._address} keeps its images in the containerd image store, "
                "which envbuild can use from Engine 28.0 on",
                remedy='upgrade it, or set "features": {"containerd-snapshotter": false} in its daemon.json',
            )

    def _own(self, reference: str) -> str:
        """Return what the engine calls an image that is given by a tag or by its id."""
        if not reference.startswith("sha256:") or not self._tells_of_its_store:
            return reference
        return name_of(reference, self._images())

    def _images(self) -> list[dict[str, Any]]:
        """Return all local images as the engine lists them."""
        return list(self._steadily(self._client.images))

    def _inspect(self, reference: str) -> dict[str, Any] | None:
        return self._inspected(self._own(reference))

    def _inspected(self, name: str) -> dict[str, Any] | None:
        """Return what the engine says of an image that it calls so, by a tag or its own id; None if it is gone."""

        def ask() -> dict[str, Any] | None:
            try:
                image: dict[str, Any] = self._client.inspect_image(name)  # type: ignore[no-untyped-call]
            except NotFound:
                return None
            return image

        return self._steadily(ask)

    def _steadily(self, ask: Callable[[], _Answer]) -> _Answer:
        """Return the engine's answer about images; it is asked again where it fails.

        The containerd image store can neither list images nor inspect one while one of them is removed.
        """
        with engine_errors(self._address):
            for pause in _PAUSES:
                try:
                    return ask()
                except APIError as error:
                    if error.status_code == HTTPStatus.BAD_REQUEST:
                        raise
                time.sleep(pause)
            return ask()

    def _need_images(self, job: ImageBuild) -> None:
        for image in named_images(job.dockerfile, job.arguments):
            if self._inspect(image) is None:
                raise BuildFailedError(
                    f"building {job.tag}: its Dockerfile starts from {image}, which is not on the engine",
                    remedy="build or load that image first; a build has no network and pulls nothing",
                )

    def _build_failure(self, job: ImageBuild, error: str, step: FailedStep | None) -> BuildFailedError:
        if step is None:
            return self._failure(f"building {job.tag} failed", error)
        code = step.exit_code
        if code is None:
            how = "failed"
        elif code == _KILLED:
            how = f"was killed (exit code {code}): out of memory"
        else:
            how = f"failed with exit code {code}"
        name = step.name if len(step.name) <= _NAME_CHARACTERS else f"{step.name[:_NAME_CHARACTERS]}…"
        return self._failure(f"building {job.tag}: the step {name} {how}", error, step.lines)

    def _failure(self, what: str, error: str, lines: tuple[str, ...] = ()) -> BuildFailedError:
        """Return the failure, as a full disk where the engine's disk is full."""
        root = Path(self.facts().root)
        free = disk_free(root)
        if out_of_disk("\n".join((error, *lines)), free):
            left = "" if free is None else f", {free} bytes are free now that it has ended"
            return BuildFailedError(
                f"{what}: out of disk on the engine's {root}{left}",
                remedy=MAKE_ROOM,
                evidence=(*lines, *error.splitlines()),
            )
        return BuildFailedError(what, evidence=lines or tuple(error.splitlines()))


def _version(api: str) -> tuple[int, ...]:
    return tuple(int(part) for part in api.split("."))


def _build_parameters(job: ImageBuild) -> dict[str, str]:
    return {
        "version": "2",  # BuildKit
        "t": job.tag,
        "networkmode": "none",
        "buildargs": json.dumps(dict(job.arguments), sort_keys=True),
        "labels": json.dumps({"envbuild.built": "1"}),
    }
