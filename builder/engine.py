"""The only door to Docker: few verbs, values in and out; `builder.dockerd.client.connect` gives the real one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from builder.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """A folder or file of this machine seen inside a container."""

    source: Path
    target: str
    read_only: bool = True


class NoGpuError(EngineError):
    """The engine cannot give a container a GPU."""

    default_remedy = "install the NVIDIA driver and the NVIDIA container toolkit on the engine's machine"


ALL_GPUS = -1
CONFIG_ANNOTATION = "dev.envbuild.config"  # of an archive's index: the config's digest, by which an image is known here


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerRun:
    """A command in a container without network; `memory` and `shared_memory` are in bytes, `timeout` in seconds.

    `gpus` is how many of the machine's GPUs it sees (ALL_GPUS: every one); `cpu_shares` is its weight against others
    where cores are short (None: the engine's default, 1024).
    """

    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    tmpfs: tuple[str, ...] = ()
    workdir: str | None = None
    user: str | None = None
    memory: int | None = None
    cpu_shares: int | None = None
    timeout: float = 3600.0
    read_only_root: bool = False
    gpus: int = 0
    shared_memory: int = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """How a container ended. `code` is the program's own exit code (128 + n: ended by signal n)."""

    code: int
    stdout: bytes = b""
    stderr: bytes = b""
    oom_killed: bool = False
    timed_out: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageBuild:
    """A Dockerfile and its context folder, built without network; `dockerfile` is the file's text."""

    dockerfile: str
    context: Path
    tag: str
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalImage:
    """An image that the engine has: its tags, its size in bytes with all layers, and whether a container uses it."""

    image_id: str
    references: tuple[str, ...]
    size: int
    in_use: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineFacts:
    """What the engine says of itself; two engines with one `host` share that machine's cores, memory (bytes) and GPUs.

    `gpus` are the GPUs that it says it has, by index or UUID; many an engine has some and does not say so. `root` is
    where its images lie on its machine, `containerd` whether in the containerd image store, as archives and as files.
    """

    version: str
    api_version: str
    operating_system: str
    cpus: int
    memory: int
    storage_driver: str
    root: str
    containerd: bool = False
    host: str = ""
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageLayer:
    """A layer of a local image: its diff id, what the history calls it, its unpacked bytes if they are known."""

    diff_id: str
    title: str
    size: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFacts:
    """What a local image says of itself: its id, its layers from the bottom, its variables and labels.

    `run` is how it runs, as far as it says so: the fields Cmd, Entrypoint, User and WorkingDir of its config.
    """

    image_id: str
    layers: tuple[ImageLayer, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    run: Mapping[str, object] = field(default_factory=dict)


def chain_of(diff_ids: Iterable[str]) -> tuple[str, ...]:
    """Return the chain id of every prefix of layers, as the OCI image specification defines it.

    The first is the layer's own diff id; each next is sha256 over the one before, a space and the layer's diff id.
    """
    chains: list[str] = []
    for diff_id in diff_ids:
        if chains:
            chains.append(f"sha256:{hashlib.sha256(f'{chains[-1]} {diff_id}'.encode()).hexdigest()}")
        else:
            chains.append(diff_id)
    return tuple(chains)


class Engine(Protocol):
    """What the stages ask of a container engine."""

    def facts(self) -> EngineFacts:
        """Return what the engine says of itself; raise EngineError if it cannot be used."""
        ...

    def image_id(self, reference: str) -> str | None:
        """Return the id (`sha256:…`) of a local image, or None; never pulls.

        The id is the config's digest of an image that was loaded, whatever kind of store the engine has.
        """
        ...

    def image_facts(self, reference: str) -> ImageFacts | None:
        """Return what a local image says of itself, or None; never pulls."""
        ...

    def local_images(self) -> tuple[LocalImage, ...]:
        """Return all local images, those without a tag too."""
        ...

    def chain_ids(self) -> frozenset[str]:
        """Return the chain ids (`sha256:…`) of the layers of local images that an archive may leave out."""
        ...

    def load(self, archive: Iterable[bytes]) -> None:
        """Load an archive of `builder.build.image`; layers that the engine has may be missing in it.

        Raises BuildFailedError where the engine refuses it.
        """
        ...

    def run(self, job: ContainerRun, on_line: Callable[[str], None] | None = None) -> Exit:
        """Run a container to its end and remove it; the program's exit code is an answer, not an error.

        Raises NoGpuError where it asks for GPUs that the engine cannot give.
        """
        ...

    def build(self, job: ImageBuild, on_line: Callable[[str], None] | None = None) -> str:
        """Build an image with BuildKit and return its id; raise BuildFailedError naming the failed step."""
        ...

    def remove_image(self, reference: str) -> None:
        """Remove a local image or tag, if it is there."""
        ...
