"""Byte code of wheels, compiled by the Python of the image's own base, kept per wheel."""

from __future__ import annotations

import json
import os
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import builder
from builder.build.hostile import BROKEN
from builder.build.tarlayer import File, Member
from builder.build.wheelfile import TESTS
from builder.document import key_of, sha256_file
from builder.engine import ContainerRun, Mount
from builder.errors import BuildFailedError
from builder.store import prove_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from builder.build.venv import Venv
    from builder.build.wheelfile import WheelLayout
    from builder.engine import Engine, Exit
    from builder.store import Store

SCRIPT = Path(builder.__file__).parent / "build" / "compile_inside.py"
TAIL_LINES = 20
_BROKEN = "zipfile.BadZipFile: "


def byte_code_key(layout: WheelLayout, venv: Venv, python: str) -> str:
    """Return the key of a wheel's byte code: everything that can change its bytes."""
    return key_of(
        {
            "wheel": layout.wheel.sha256,
            "filename": layout.wheel.filename,
            "prefix": venv.prefix,
            "python": venv.python,
            "python_identity": python,
            "script": sha256_file(SCRIPT),
            "without": TESTS,
            **({"left_out": list(layout.left_out)} if layout.left_out else {}),
        }
    )


def compile_wheels(
    layouts: Iterable[WheelLayout],
    *,
    venv: Venv,
    python: str,
    base_image: Callable[[], str],
    engine: Engine,
    store: Store,
    on_progress: Callable[[str], None],
    on_compiled: Callable[[str, Path], None],
) -> None:
    """Tell the archive of each wheel's byte code, by the wheel's sha256, as soon as it is there.

    Wheels that have none yet are compiled in one container, in the given order. `python` says which Python it is
    (whatever changes it changes this text), `base_image` gives the local image that has it and is called only if
    something must be compiled. Raises BuildFailedError if the container fails.
    """
    wanted = {layout.wheel.sha256: layout for layout in layouts if layout.sources(venv)}
    keys = {wheel: byte_code_key(layout, venv, python) for wheel, layout in wanted.items()}
    told: set[str] = set()

    def tell(wheels: Iterable[str]) -> None:
        for wheel in wheels:
            told.add(wheel)
            on_compiled(wheel, _kept(keys[wheel], store))

    missing = _missing(keys, store)
    tell(keys.keys() - missing)
    if missing:
        with ExitStack() as held:
            for key in sorted(keys[wheel] for wheel in missing):  # in one order, so that no two wait for each other
                held.enter_context(store.exclusive(f"bytecode-{key}"))
            missing = _missing(keys, store)  # another process may have compiled them meanwhile
            tell(keys.keys() - missing - told)
            if missing:
                jobs = {wheel: layout for wheel, layout in wanted.items() if wheel in missing}
                prove_wheels(jobs.values(), store)
                compiling = _Compiling(jobs, keys, store, on_progress, lambda wheel: tell([wheel]))
                compiling.run(venv, base_image(), engine)


def prove_wheels(layouts: Iterable[WheelLayout], store: Store) -> None:
    """Prove the wheels that lie in the store before they are read; raise DamagedFileError for one that is damaged."""
    prove_all(store, [layout.wheel.sha256 for layout in layouts if store.has(layout.wheel.sha256)])


def byte_code_files(layout: WheelLayout, venv: Venv, archive: Path | None) -> tuple[File, ...]:
    """Return the byte code of a wheel as files of its layer; sources that do not compile or are overlaid have none."""
    if archive is None:
        return ()
    known = {file.path for file in layout.sources(venv)} - {file.path for file in layout.overlaid}
    with zipfile.ZipFile(archive) as results:
        return tuple(
            File(
                path=venv.byte_code(info.filename),
                size=info.file_size,
                content=Member(archive=archive, origin=f"byte code of {layout.wheel.filename}", name=info.filename),
            )
            for info in results.infolist()
            if info.filename in known
        )


def _missing(keys: dict[str, str], store: Store) -> set[str]:
    records = {wheel: store.result("bytecode", key) for wheel, key in keys.items()}
    return {wheel for wheel, record in records.items() if record is None or not store.has(record["sha256"])}


def _kept(key: str, store: Store) -> Path:
    record = store.result("bytecode", key)
    if record is None:
        raise BuildFailedError(
            f"the byte code with key {key} left the store while it was needed", remedy="run it again"
        )
    return store.sound(record["sha256"])


@dataclass(frozen=True, slots=True)
class _Compiling:
    """Wheels that are compiled in a container, by sha256; each is kept and told when the container has finished it."""

    jobs: dict[str, WheelLayout]
    keys: dict[str, str]
    store: Store
    on_progress: Callable[[str], None]
    tell: Callable[[str], None]

    def run(self, venv: Venv, image: str, engine: Engine) -> None:
        left = set(self.jobs)
        with self.store.scratch() as scratch:

            def finish(wheel: str) -> None:
                left.remove(wheel)
                self._keep(wheel, scratch / "results" / wheel)
                self.on_progress(
                    f"byte code of {self.jobs[wheel].wheel.name} ({len(self.jobs) - len(left)} of {len(self.jobs)})"
                )
                self.tell(wheel)

            def hear(line: str) -> None:
                word, _, wheel = line.partition(" ")
                if word == "compiled" and wheel in left:
                    finish(wheel)

            (scratch / "jobs").mkdir()
            (scratch / "results").mkdir()
            for wheel, layout in self.jobs.items():
                (scratch / "jobs" / wheel).write_text(json.dumps(_job(layout, venv)))
            ended = engine.run(_container(self.jobs, scratch, image, venv), hear)
            if ended.code != 0:
                raise _failure([self.jobs[wheel] for wheel in sorted(left)], ended)
            for wheel in sorted(left):
                finish(wheel)

    def _keep(self, wheel: str, archive: Path) -> None:
        sha256 = self.store.add(archive)
        record = {"sha256": sha256, "wheel": self.jobs[wheel].wheel.filename}
        self.store.keep_result("bytecode", self.keys[wheel], record)


def _job(layout: WheelLayout, venv: Venv) -> list[tuple[str, str]]:
    return [(file.content.name, file.path) for file in layout.sources(venv) if isinstance(file.content, Member)]


def _container(jobs: dict[str, WheelLayout], scratch: Path, image: str, venv: Venv) -> ContainerRun:
    wheels = [Mount(source=layout.wheel.path, target=f"/wheels/{wheel}") for wheel, layout in jobs.items()]
    return ContainerRun(
        image=image,
        command=(venv.base_interpreter, "-S", f"/envbuild/{SCRIPT.name}", *jobs),
        environment={"PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore", "PYTHONDONTWRITEBYTECODE": "1"},
        mounts=(
            Mount(source=SCRIPT, target=f"/envbuild/{SCRIPT.name}"),
            Mount(source=scratch / "jobs", target="/jobs"),
            Mount(source=scratch / "results", target="/results", read_only=False),
            *wheels,
        ),
        tmpfs=("/tmp",),  # noqa: S108 - inside the container
        user=f"{os.getuid()}:{os.getgid()}",
        read_only_root=True,
    )


def _failure(unfinished: list[WheelLayout], ended: Exit) -> BuildFailedError:
    names = [layout.wheel.filename for layout in unfinished]
    lines = (ended.stderr or ended.stdout).decode(errors="replace").rstrip().splitlines()
    tail = [line for line in lines if not line.startswith("compiled ")][-TAIL_LINES:]
    if broken := next((line for line in reversed(tail) if line.startswith(_BROKEN)), None):
        return BuildFailedError(
            f"one of these wheels is broken: {', '.join(names[:5])}", remedy=BROKEN, evidence=(broken,)
        )
    return BuildFailedError(
        f"the base image could not compile the Python files of {', '.join(names[:5]) or 'the wheels'} "
        f"(exit code {ended.code})",
        remedy="the lines below are the interpreter's own; a base without `python3` cannot hold the environment",
        evidence=tuple(tail),
    )
