"""Where a probe runs: inside an image, or with an interpreter of this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from builder.build.environment import CACHE
from builder.document import canonical_json
from builder.engine import ContainerRun, Exit, Mount
from builder.process import run
from builder.verify.inside import SOURCE, ProbeAnswer, last_report, tail_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from builder.engine import Engine
    from builder.store import Store

FOLDER = "/envbuild/asked"
REQUEST_FILE = "request.json"
INSIDE = {"PYTHONPATH": "/envbuild", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp"}  # noqa: S108 - inside the container


class Place(Protocol):
    """Runs a probe over a folder of files and returns what it reported."""

    def probe(
        self,
        module: str,
        request: Mapping[str, object],
        files: Mapping[str, Path],
        *,
        timeout: float,
        environment: Mapping[str, str] = ...,
        on_line: Callable[[str], None] | None = None,
    ) -> ProbeAnswer:
        """Run `builder.verify.probe.MODULE FOLDER`; `files` are by their path in FOLDER, the request beside them."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class InImage:
    """Inside an image, without network; `memory` and `shared_memory` are in bytes."""

    engine: Engine
    store: Store
    image: str
    memory: int | None = None
    gpus: int = 0
    shared_memory: int = 1 << 30

    def probe(
        self,
        module: str,
        request: Mapping[str, object],
        files: Mapping[str, Path],
        *,
        timeout: float,
        environment: Mapping[str, str] = {},
        on_line: Callable[[str], None] | None = None,
    ) -> ProbeAnswer:
        """Mount the files and the probe's source read-only and run the probe with the image's own Python."""
        asked = self.store.sound(self.store.add_bytes(canonical_json(request)))
        given = {**files, REQUEST_FILE: asked}
        mounts = (Mount(source=source, target=f"{FOLDER}/{name}") for name, source in given.items())
        ended = self.engine.run(
            ContainerRun(
                image=self.image,
                command=("python3", "-m", f"builder.verify.probe.{module}", FOLDER),
                environment={**INSIDE, **environment},
                mounts=(Mount(source=SOURCE, target="/envbuild/builder"), *mounts),
                tmpfs=("/tmp", CACHE),  # noqa: S108 - inside the container
                memory=self.memory,
                gpus=self.gpus,
                shared_memory=self.shared_memory,
                timeout=timeout,
                read_only_root=True,
            ),
            on_line,
        )
        return ProbeAnswer(report=last_report(ended.stdout), exit=ended, tail=tail_of(ended))


@dataclass(frozen=True, kw_only=True, slots=True)
class Here:
    """On this machine with an interpreter that has the stack: what a bare-metal installation runs."""

    store: Store
    python: Path
    hidden: tuple[str, ...] = field(default=("VIRTUAL_ENV", "PYTHONHOME"))

    def probe(
        self,
        module: str,
        request: Mapping[str, object],
        files: Mapping[str, Path],
        *,
        timeout: float,
        environment: Mapping[str, str] = {},
        on_line: Callable[[str], None] | None = None,
    ) -> ProbeAnswer:
        """Run the probe in a folder of its own; the interpreter sees its own packages and none of envbuild's."""
        with self.store.scratch() as scratch:
            folder = _laid_out(scratch / "asked", files)
            (folder / REQUEST_FILE).write_bytes(canonical_json(request))
            source = scratch / "source"
            source.mkdir()
            (source / SOURCE.name).symlink_to(SOURCE)
            path = os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH")]))
            ended = run(
                [str(self.python), "-m", f"builder.verify.probe.{module}", str(folder)],
                environment={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environment},
                without=self.hidden,
                cwd=scratch,  # the interpreter imports from where it stands before anything else
                timeout=timeout,
                on_line=on_line,
            )
        code = 128 - ended.code if ended.code < 0 else ended.code
        gone = Exit(code=code, stdout=ended.stdout, stderr=ended.stderr, timed_out=ended.timed_out, seconds=timeout)
        return ProbeAnswer(report=last_report(gone.stdout), exit=gone, tail=tail_of(gone))


def _laid_out(folder: Path, files: Mapping[str, Path]) -> Path:
    folder.mkdir()
    for name, source in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(source)
    return folder
