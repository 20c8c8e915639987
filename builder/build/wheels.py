"""Compile the packages of the stack that come as source: one wheel each, in the toolchain container, kept by key."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name, parse_wheel_filename

import builder.build
from builder.document import key_of, sha256_file, tree_digest
from builder.engine import ContainerRun, Mount
from builder.errors import BuildFailedError, InvalidDocumentError
from builder.lock.archive import unpack_archive
from builder.recipe.model import BuildSettings
from builder.recipe.packages import known_package
from builder.recipe.targets import find_target
from builder.registry.share import Shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.engine import Engine, Exit
    from builder.lock.model import Lock
    from builder.recipe.model import Package
    from builder.recipe.source import RecipeFile
    from builder.store import Store

SCRIPT = Path(builder.build.__file__).parent / "scripts" / "compile_wheel.sh"
LAYOUT = 1
NOBODY = "65534:65534"
MEMORY = 8 << 30
TIMEOUT = 4 * 3600.0
EVIDENCE_LINES = 20
SHARED = Shared(kind="wheel", fields={"name": str, "version": str, "filename": str, "sha256": str}, file="sha256")


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelJob:
    """One package to compile and everything that can change its bytes: `key` covers these fields but for `source`.

    `source` is a folder, or the canonical archive of a fetched source; `subdirectory` is where the package lies in it.
    """

    name: str
    source: Path
    source_digest: str
    subdirectory: str = "."
    environment: tuple[tuple[str, str], ...]
    toolchain_key: str
    script_digest: str

    @property
    def archs(self) -> str:
        """The compute capabilities that the package is compiled for, as people write them."""
        return dict(self.environment)["TORCH_CUDA_ARCH_LIST"].replace(";", " and ")

    @property
    def key(self) -> str:
        """The key that the finished wheel is kept under."""
        return key_of(
            {
                "layout": LAYOUT,
                "name": self.name,
                "source": self.source_digest,
                "subdirectory": self.subdirectory,
                "environment": list(self.environment),
                "toolchain": self.toolchain_key,
                "script": self.script_digest,
            }
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltWheel:
    """A compiled wheel in the store."""

    name: str
    version: str
    filename: str
    sha256: str


def plan_wheels(
    source: RecipeFile, lock: Lock, toolchain_key: str, archive: Callable[[str], Path]
) -> tuple[WheelJob, ...]:
    """Return the compile jobs of a recipe; reads the source folders beside it, fetches and runs nothing.

    `archive` says where the archive of a fetched source is, or will be, by its sha256.
    """
    return tuple(
        _plan(source, name, lock, toolchain_key=toolchain_key, archive=archive)
        for name, package in sorted(source.recipe.stack.items())
        if package.from_source
    )


def _plan(source: RecipeFile, name: str, lock: Lock, *, toolchain_key: str, archive: Callable[[str], Path]) -> WheelJob:
    package, project = source.recipe.stack[name], canonicalize_name(name)
    if package.path is not None:
        path = _local_folder(source, name, package.path)
        digest, subdirectory = tree_digest(path), "."
    else:
        locked = lock.sources[project]
        path, digest, subdirectory = archive(locked.archive), locked.archive, locked.subdirectory
    return WheelJob(
        name=project,
        source=path,
        source_digest=digest,
        subdirectory=subdirectory,
        environment=_environment(source, name, package, lock),
        toolchain_key=toolchain_key,
        script_digest=sha256_file(SCRIPT),
    )


def _local_folder(source: RecipeFile, name: str, path: str) -> Path:
    folder = (source.folder / path).resolve()
    if not (folder / "pyproject.toml").is_file():
        raise InvalidDocumentError(
            f"{source.path}: stack.{name}.path: {folder} holds no pyproject.toml",
            remedy="give the folder of a Python package, relative to the recipe",
        )
    return folder


def _environment(source: RecipeFile, name: str, package: Package, lock: Lock) -> tuple[tuple[str, str], ...]:
    """Return the variables of a compilation: what the recipe says overrules what is known of the package."""
    build = package.build or BuildSettings()
    archs = build.archs or (find_target(source.recipe.target.gpu).capability,)
    variables = {
        "SOURCE_DATE_EPOCH": str(lock.epoch),
        "TORCH_CUDA_ARCH_LIST": ";".join(archs),
        **known_package(name).environment_for(archs),
        **build.env,
    }
    return tuple(sorted(variables.items()))


def built_wheel(job: WheelJob, store: Store) -> BuiltWheel | None:
    """Return the wheel that this job made before, if its bytes are still in the store."""
    record = store.result("wheel", job.key)
    if record is None or not store.has(record["sha256"]):
        return None
    return BuiltWheel(**record)


def build_wheel(
    job: WheelJob, *, toolchain: str, engine: Engine, store: Store, on_line: Callable[[str], None]
) -> BuiltWheel:
    """Compile one package in the toolchain image, without network and not as root, and keep the wheel."""
    with store.exclusive(f"wheel-{job.key}"):
        done = built_wheel(job, store)
        if done is not None:
            return done
        with store.scratch() as folder:
            output = folder / "output"
            output.mkdir()
            output.chmod(0o777)
            folder.chmod(0o711)
            ended = engine.run(_container(job, _tree(job, folder), toolchain, output), on_line)
            log = _keep_log(job, ended, store)
            found = sorted(output.glob("*.whl"))
            if ended.code != 0 or len(found) != 1:
                raise _failure(job, ended, log, len(found))
            return _keep(job, found[0], store)


def _tree(job: WheelJob, scratch: Path) -> Path:
    """Return the folder of a job's source; an archive is unpacked for it, readable for the container's user."""
    if job.source.is_dir():
        return job.source
    tree = scratch / "source"
    tree.mkdir()
    tree.chmod(0o755)
    unpack_archive(job.source, tree)
    return tree


def _jobs(job: WheelJob) -> dict[str, str]:
    """Return how many files are compiled at a time, where it is known how much memory one of them takes."""
    each = known_package(job.name).memory_per_job
    return {"MAX_JOBS": str(max(1, min(MEMORY // each, os.cpu_count() or 1)))} if each else {}


def _container(job: WheelJob, tree: Path, toolchain: str, output: Path) -> ContainerRun:
    return ContainerRun(
        image=toolchain,
        command=("/bin/sh", "/compile_wheel.sh", job.subdirectory),
        environment={"HOME": "/tmp", **_jobs(job), **dict(job.environment)},  # noqa: S108 - inside the container
        mounts=(
            Mount(source=tree, target="/source"),
            Mount(source=SCRIPT, target="/compile_wheel.sh"),
            Mount(source=output, target="/output", read_only=False),
        ),
        tmpfs=("/tmp", "/build"),  # noqa: S108 - inside the container
        user=NOBODY,
        memory=MEMORY,
        timeout=TIMEOUT,
        read_only_root=True,
    )


def _keep_log(job: WheelJob, ended: Exit, store: Store) -> Path:
    with store.log(f"{job.name}-{job.key[:16]}.log") as file:
        file.write(ended.stdout + ended.stderr)
        return Path(file.name)


def _keep(job: WheelJob, wheel: Path, store: Store) -> BuiltWheel:
    name, version, _, _ = parse_wheel_filename(wheel.name)
    filename = wheel.name
    if name != job.name:
        raise BuildFailedError(f"the source of {job.name} built a wheel of {name}")
    owned = wheel.with_name("owned.whl")
    owned.write_bytes(wheel.read_bytes())
    done = BuiltWheel(name=name, version=str(version), filename=filename, sha256=store.add(owned))
    record = {"name": done.name, "version": done.version, "filename": done.filename, "sha256": done.sha256}
    store.keep_result("wheel", job.key, record)
    return done


def _failure(job: WheelJob, ended: Exit, log: Path, wheels: int) -> BuildFailedError:
    if ended.oom_killed:
        how = f"ran out of the {MEMORY >> 30} GiB of memory that a compile may use"
    elif ended.timed_out:
        how = f"was stopped after {ended.seconds:.0f} s"
    elif ended.code != 0:
        how = f"failed with exit code {ended.code}"
    else:
        how = f"left {wheels} wheels instead of one"
    tail = (ended.stdout + ended.stderr).decode(errors="replace").rstrip().splitlines()[-EVIDENCE_LINES:]
    return BuildFailedError(
        f"compiling {job.name} {how}",
        remedy=f"the whole log is in {log}",
        evidence=tuple(line.rstrip() for line in tail),
        log=log,
    )
