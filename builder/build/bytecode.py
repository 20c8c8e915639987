"""Byte code of wheels, compiled by the Python of the image's own base, kept per wheel."""

from __future__ import annotations

import json
import os
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import builder
from builder.build.tarlayer import File, Member
from builder.document import key_of, sha256_file
from builder.engine import ContainerRun, Mount
from builder.errors import BuildFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from builder.build.venv import Venv
    from builder.build.wheelfile import WheelLayout
    from builder.engine import Engine, Exit
    from builder.store import Store

SCRIPT = Path(builder.__file__).parent / "build" / "compile_inside.py"
TAIL_LINES = 20


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
) -> dict[str, Path]:
    """Return by wheel sha256 the archive of its byte code; wheels that have none yet are compiled in one container.

    `python` says which Python it is (whatever changes it changes this text), `base_image` gives the local image that
    has it and is called only if something must be compiled. Raises BuildFailedError if the container fails.
    """
    wanted = {layout.wheel.sha256: layout for layout in layouts if layout.sources(venv)}
    keys = {wheel: byte_code_key(layout, venv, python) for wheel, layout in wanted.items()}
    if missing := _missing(keys, store):
        with ExitStack() as held:
            for key in sorted(keys[wheel] for wheel in missing):  # in one order, so that no two wait for each other
                held.enter_context(store.exclusive(f"bytecode-{key}"))
            missing = _missing(keys, store)  # another process may have compiled them meanwhile
            if missing:
                jobs = {wheel: wanted[wheel] for wheel in missing}
                _compile(jobs, keys, venv=venv, image=base_image(), engine=engine, store=store, on_progress=on_progress)
    return {wheel: _kept(key, store) for wheel, key in keys.items()}


def byte_code_files(layout: WheelLayout, venv: Venv, archive: Path | None) -> tuple[File, ...]:
    """Return the byte code of a wheel as files of its layer; sources that do not compile have none."""
    if archive is None:
        return ()
    known = {file.path for file in layout.sources(venv)}
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


def _missing(keys: dict[str, str], store: Store) -> list[str]:
    records = {wheel: store.result("bytecode", key) for wheel, key in keys.items()}
    return [wheel for wheel, record in records.items() if record is None or not store.has(record["sha256"])]


def _kept(key: str, store: Store) -> Path:
    record = store.result("bytecode", key)
    if record is None:
        raise BuildFailedError(
            f"the byte code with key {key} left the store while it was needed", remedy="run it again"
        )
    return store.sound(record["sha256"])


def _compile(
    jobs: dict[str, WheelLayout],
    keys: dict[str, str],
    *,
    venv: Venv,
    image: str,
    engine: Engine,
    store: Store,
    on_progress: Callable[[str], None],
) -> None:
    done = 0

    def report(line: str) -> None:
        nonlocal done
        word, _, wheel = line.partition(" ")
        if word == "compiled" and wheel in jobs:
            done += 1
            on_progress(f"byte code of {jobs[wheel].wheel.name} ({done} of {len(jobs)})")

    with store.scratch() as scratch:
        (scratch / "jobs").mkdir()
        (scratch / "results").mkdir()
        for wheel, layout in jobs.items():
            (scratch / "jobs" / wheel).write_text(json.dumps(_job(layout, venv)))
        ended = engine.run(_container(jobs, scratch, image, venv), report)
        if ended.code != 0:
            raise _failure(jobs, scratch, ended)
        for wheel, layout in jobs.items():
            sha256 = store.add(scratch / "results" / wheel)
            store.keep_result("bytecode", keys[wheel], {"sha256": sha256, "wheel": layout.wheel.filename})


def _job(layout: WheelLayout, venv: Venv) -> list[tuple[str, str]]:
    return [(file.content.name, file.path) for file in layout.sources(venv) if isinstance(file.content, Member)]


def _container(jobs: dict[str, WheelLayout], scratch: Path, image: str, venv: Venv) -> ContainerRun:
    wheels = [Mount(source=layout.wheel.path, target=f"/wheels/{wheel}") for wheel, layout in jobs.items()]
    return ContainerRun(
        image=image,
        command=(venv.base_interpreter, "-S", f"/envbuild/{SCRIPT.name}"),
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


def _failure(jobs: dict[str, WheelLayout], scratch: Path, ended: Exit) -> BuildFailedError:
    unfinished = [layout.wheel.filename for wheel, layout in jobs.items() if not (scratch / "results" / wheel).exists()]
    lines = (ended.stderr or ended.stdout).decode(errors="replace").rstrip().splitlines()
    tail = [line for line in lines if not line.startswith("compiled ")][-TAIL_LINES:]
    return BuildFailedError(
        f"the base image could not compile the Python files of {', '.join(unfinished[:5]) or 'the wheels'} "
        f"(exit code {ended.code})",
        remedy="the lines below are the interpreter's own; a base without `python3` cannot hold the environment",
        evidence=tuple(tail),
    )
