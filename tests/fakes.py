"""An engine without Docker: answers with what the test gives it, and remembers what it was asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.engine import ContainerRun, EngineFacts, Exit, ImageBuild, ImageFacts, LocalImage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FACTS = EngineFacts(
    version="20.10.24",
    api_version="1.41",
    operating_system="Debian GNU/Linux 12 (bookworm)",
    cpus=2,
    memory=24 << 30,
    storage_driver="overlay2",
    root="/var/lib/docker",
)


@dataclass(kw_only=True)
class FakeEngine:
    """`answer` and `answer_build` may raise; `images` maps references to ids and learns from builds.

    `used` are those that a container uses.
    """

    answer: Callable[[ContainerRun], Exit] = lambda _job: Exit(code=0)
    answer_build: Callable[[ImageBuild], str] = lambda job: f"sha256:{job.tag.encode().hex():0<64.64}"
    images: dict[str, str] = field(default_factory=dict)
    described: dict[str, ImageFacts] = field(default_factory=dict)
    used: frozenset[str] = frozenset()
    chains: frozenset[str] = frozenset()
    runs: list[ContainerRun] = field(default_factory=list)
    builds: list[ImageBuild] = field(default_factory=list)
    loaded: list[bytes] = field(default_factory=list)

    def facts(self) -> EngineFacts:
        return FACTS

    def image_id(self, reference: str) -> str | None:
        return self.images.get(reference)

    def image_facts(self, reference: str) -> ImageFacts | None:
        return self.described.get(reference)

    def local_images(self) -> tuple[LocalImage, ...]:
        return tuple(
            LocalImage(image_id=image_id, references=(name,), size=1, in_use=name in self.used)
            for name, image_id in self.images.items()
        )

    def chain_ids(self) -> frozenset[str]:
        return self.chains

    def load(self, archive: Iterable[bytes]) -> None:
        self.loaded.append(b"".join(archive))

    def run(self, job: ContainerRun, on_line: Callable[[str], None] | None = None) -> Exit:
        self.runs.append(job)
        ended = self.answer(job)
        if on_line is not None:
            for line in ended.stderr.decode(errors="replace").splitlines():
                on_line(line)
        return ended

    def build(self, job: ImageBuild, on_line: Callable[[str], None] | None = None) -> str:
        self.builds.append(job)
        self.images[job.tag] = self.answer_build(job)
        return self.images[job.tag]

    def remove_image(self, reference: str) -> None:
        self.images.pop(reference, None)
