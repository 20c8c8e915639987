"""The packages of the stack that come as source: what compiles each, keyed by all that can change its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builder.build.benches import SCRIPT
from builder.build.toolchain import compilers_digest
from builder.document import key_of, sha256_file, tree_digest
from builder.errors import InvalidDocumentError
from builder.recipe.model import BuildSettings
from builder.recipe.packages import known_package
from builder.recipe.targets import find_target
from builder.registry.share import Shared

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.lock.model import Lock
    from builder.recipe.model import Package
    from builder.recipe.source import RecipeFile
    from builder.store import Store

LAYOUT = 2
UNSEEN_FLAGS = frozenset({"NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "NVCC_CCBIN"})
SHARED = Shared(kind="wheel", fields={"name": str, "version": str, "filename": str, "sha256": str}, file="sha256")


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelJob:
    """One package to compile and everything that can change its bytes: `key` covers these fields but for `source`.

    `source` is a folder, or the canonical archive of a fetched source; `subdirectory` is where the package lies in it.
    `compilers_digest` is over the part of the toolchain that object files depend on, so that they outlive the rest.
    """

    name: str
    source: Path
    source_digest: str
    subdirectory: str = "."
    environment: tuple[tuple[str, str], ...]
    toolchain_key: str
    compilers_digest: str = ""
    script_digest: str

    @property
    def archs(self) -> str:
        """The compute capabilities that the package is compiled for, as people write them."""
        return dict(self.environment)["TORCH_CUDA_ARCH_LIST"].replace(";", " and ")

    @property
    def threads(self) -> int:
        """How many architectures of one file nvcc compiles at a time, each in memory of its own."""
        variables = dict(self.environment)
        asked = variables.get("NVCC_THREADS", "1")
        archs = variables.get("TORCH_CUDA_ARCH_LIST", "").count(";") + 1
        # nvcc takes 0 for as many threads as there are processors.
        return min(int(asked) or archs, archs) if asked.isdecimal() else 1

    @property
    def cache_salt(self) -> str:
        """What a compilers' cache cannot see and must tell apart: the compilers, and flags that nvcc takes unseen."""
        unseen = {name: value for name, value in self.environment if name in UNSEEN_FLAGS}
        return key_of({"compilers": self.compilers_digest, **unseen}) if unseen else self.compilers_digest

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
        compilers_digest=compilers_digest(lock),
        script_digest=sha256_file(SCRIPT),
    )


def _local_folder(source: RecipeFile, name: str, path: str) -> Path:
    folder = (source.folder / path).resolve()
    if not (folder / "pyproject.toml").is_file():
        raise InvalidDocumentError(
            f"{source.place_of('stack', name, 'path')}: {folder} holds no pyproject.toml",
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
