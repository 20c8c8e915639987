"""A whole project on this machine alone: a recipe of handmade wheels, its lock, a base of the machine's own Python."""

from __future__ import annotations

import shutil
import tarfile
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.build.base import base_key
from builder.console import Console
from builder.document import canonical_yaml, sha256_bytes
from builder.lock.lockfile import LOCK, PYLOCK, TOOLCHAIN
from builder.lock.model import DebianLock, DebianRelease, Lock, LockedGit, LockedWheel, LockFile
from builder.lock.pylock import write_pylock
from builder.lock.question import question_of
from builder.lock.stage import locked_recipe
from builder.lock.writing import write_lock
from builder.recipe.source import read_recipe
from builder.settings import settings_from
from builder.store import Store
from builder.tools import Tools
from tests.docker.python_rootfs import system_python, write_rootfs
from tests.wheels import EXECUTABLE, make_wheel, member

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from builder.engine import Engine
    from builder.recipe.source import RecipeFile

SUITE: Literal["bookworm", "trixie"] = "bookworm" if system_python() == "3.11" else "trixie"
RECIPE = """\
version: 1
name: {name}
description: "small wheels: $HOME, \\"quoted\\" \\\\ and\\n \u00e9t\u00e9 stay as they are"
target: {{gpu: rtx-pro-6000}}
base: {{debian: {suite}}}
python: "{python}"
stack: {{foo: "1.0"}}
smoke: {{require: [static]}}
"""
SOURCE = b"""
CHOICES = frozenset({"a", "b", None})


def main() -> None:
    import sys

    print(sys.prefix, __spec__.cached)
"""
FOO = [
    (member("foo/__init__.py"), SOURCE),
    (member("foo/\u00e9tage.py"), b"NAME = 'foo'\n"),
    (member("foo/run.sh", EXECUTABLE), b"#!/bin/sh\n"),
    (member("foo/old.py"), b"print 'python 2'\n"),
    (member("foo-1.0.data/scripts/foo-script", EXECUTABLE), b"#!python\nprint('script')\n"),
    (member("foo-1.0.data/data/share/foo.txt"), b"text"),
    (member("foo-1.0.data/platlib/foo/native.so"), b"elf"),
    (member("foo-1.0.data/platlib/foo/platform_part.py"), b"HERE = True\n"),
    (member("foo-1.0.data/headers/foo.h"), b"int foo;"),
]
ENTRY_POINTS = "[console_scripts]\nfoo = foo:main\nbar-tool = foo.sub:Tool.main\n[gui_scripts]\nfoo-gui = foo:main\n"


@dataclass(kw_only=True)
class Project:
    """A project folder with one locked recipe, and a store that has everything that its lock names."""

    root: Path
    store: Store
    engine: Callable[[], Engine]
    name: str
    wheels: list[LockedWheel] = field(default_factory=list)

    @property
    def source(self) -> RecipeFile:
        return read_recipe(self.root / "recipes" / f"{self.name}.yaml")

    @property
    def lock(self) -> Lock:
        return locked_recipe(self.source)

    @property
    def tools(self) -> Tools:
        return Tools(settings=settings_from({}), store=self.store, console=Console(), connect=self.engine)

    def lock_with(
        self, wheels: Iterable[LockedWheel], tools: Iterable[LockedWheel] = (), sources: tuple[LockedGit, ...] = ()
    ) -> None:
        """Write the lock that names these wheels, and `tools` for the Dockerfile."""
        self.wheels = list(wheels)
        python = self.source.recipe.python
        pylocks = {PYLOCK: write_pylock(self.wheels, python=python), TOOLCHAIN: write_pylock(tools, python=python)}
        file = LockFile(
            question=question_of(self.source),
            debian=DEBIAN,
            python={name: sha256_bytes(data) for name, data in pylocks.items()},
            sources=sources or None,
            tools={},
        )
        write_lock(self.root / "lockfiles" / self.name, {**pylocks, LOCK: canonical_yaml(file.to_plain())})


DEBIAN = DebianLock(
    suite=SUITE,
    releases=(DebianRelease(archive="debian", suite=SUITE, date="2026-01-01T00:00:00Z", packages_sha256="0" * 64),),
    base=(),
)


def add_wheel(store: Store, folder: Path, name: str, *, version: str = "1.0", **more: object) -> LockedWheel:
    """Make a wheel, move it into the store, and return how a lock names it; `files` may be given."""
    files = more.pop("files", {f"{name}.py": f"NAME = {name!r}\n".encode()})
    made = make_wheel(folder, name, files, version=version, **more)  # type: ignore[arg-type]
    size = made.path.stat().st_size
    store.add(made.path, made.sha256)
    return LockedWheel(name=made.name, version=version, filename=made.filename, sha256=made.sha256, size=size)


def make_rootfs(path: Path, *, more: Iterable[str] = ()) -> Path:
    """Write the base: this machine's Python, the shell, the programs that a Dockerfile runs, and `more`."""
    programs = [Path(str(shutil.which(name))) for name in ("sh", "ln", "mkdir", *more)]
    write_rootfs(path, programs=programs)
    with tarfile.open(path, "a") as archive:
        for name in ("tmp", "var", "var/tmp"):
            archive.addfile(_folder(name, 0o1777 if name.endswith("tmp") else 0o755))
        for program in programs:
            info = tarfile.TarInfo(f"bin/{program.name}")
            data = program.resolve().read_bytes()
            info.size, info.mode = len(data), 0o4755 if program.name == "ln" else 0o755  # setuid: it must survive
            archive.addfile(info, BytesIO(data))
    return path


def _folder(name: str, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    return info


def new_project(folder: Path, rootfs: Path, engine: Callable[[], Engine], *, name: str = "small") -> Project:
    """Make a project with two wheels in `folder`; the base is `rootfs`, as if it had been bootstrapped."""
    project = Project(root=folder / "project", store=Store(folder / "store"), engine=engine, name=name)
    (project.root / "recipes").mkdir(parents=True)
    text = RECIPE.format(name=name, python=system_python(), suite=SUITE)
    (project.root / "recipes" / f"{name}.yaml").write_text(text, encoding="utf-8")
    give_base(project.store, rootfs)
    foo = add_wheel(project.store, folder, "foo", files=FOO, entry_points=ENTRY_POINTS)
    project.lock_with([add_wheel(project.store, folder, "bar"), foo])
    return project


def give_base(store: Store, rootfs: Path) -> None:
    """Put a base into a store under the key of its lock."""
    with store.scratch() as scratch:
        copy = Path(shutil.copy(rootfs, scratch / "base.tar"))
        size = copy.stat().st_size
        store.keep_result("base", base_key(DEBIAN), {"sha256": store.add(copy), "size": size})
