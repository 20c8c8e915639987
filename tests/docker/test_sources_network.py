"""Sources on the whole road: a patched package from git and one from an sdist are locked, compiled and installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.build.base import base_identity, bootstrap_base
from builder.build.layers import base_reference, make_base_layer
from builder.build.render import render_dockerfiles
from builder.build.stage import build_recipe
from builder.build.toolchain import toolchain_key, toolchain_tag
from builder.build.wheels import built_wheel, plan_wheels
from builder.console import Console
from builder.engine import ContainerRun
from builder.export.stage import export_kit
from builder.lock.debian import fetch_debs
from builder.lock.lockfile import current_lock
from builder.lock.resolve import resolve_lock
from builder.lock.writing import write_lock
from builder.recipe.source import read_recipe
from builder.recipe.workspace import workspace_of
from builder.settings import mirror_setting, settings_from
from builder.store import Store
from builder.tools import Tools
from tests.docker.python_rootfs import system_python
from tests.git_repositories import commit
from tests.package_index import PackageIndex, serve

if TYPE_CHECKING:
    from builder.dockerd.client import DockerEngine
    from builder.lock.model import Lock
    from builder.settings import Settings

pytestmark = [pytest.mark.docker, pytest.mark.network]

RECIPE = """version: 1
name: envbuild-test-sources
target: {gpu: h200}
base: {debian: SUITE}
python: "PYTHON"
as-of: 2026-11-25
indexes:
  tiny: {url: "https://tiny.example.org/simple/", packages: [tiny-sdist]}
stack:
  tiny-git:
    git: FOLDER/repo
    commit: COMMIT
    subdirectory: python
    patches: [a.patch]
    fixes:
      - {id: answer, file: python/tiny_git/__init__.py, contains: "ANSWER = 42"}
    build: {}
  tiny-sdist: {version: "1.0", build: {requires: [flit-core]}}
"""
GIT = {
    "VERSION": "7\n",
    "python/setup.py": (
        "from pathlib import Path\nfrom setuptools import setup\n"
        'setup(name="tiny-git", version=Path("../VERSION").read_text().strip(), packages=["tiny_git"])\n'
    ),
    "python/pyproject.toml": '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    '[project]\nname = "tiny-git"\ndynamic = ["version"]\ndependencies = ["tiny-sdist"]\n',
    "python/tiny_git/__init__.py": "from tiny_sdist import HALF\nANSWER = 0\n",
}
PATCH = """--- a/python/tiny_git/__init__.py
+++ b/python/tiny_git/__init__.py
@@ -1,2 +1,2 @@
 from tiny_sdist import HALF
-ANSWER = 0
+ANSWER = 42
"""
SDIST = {
    "PKG-INFO": "Metadata-Version: 2.2\nName: tiny-sdist\nVersion: 1.0\n",
    "pyproject.toml": '[build-system]\nrequires = ["flit-core"]\nbuild-backend = "flit_core.buildapi"\n'
    '[project]\nname = "tiny-sdist"\nversion = "1.0"\ndescription = "x"\nrequires-python = ">=3"\n',
    "tiny_sdist.py": '"""x"""\n\nHALF = 21\n',
}


def _base_tag(lock: Lock, store: Store, settings: Settings) -> str:
    assert lock.file.debian is not None
    fetch_debs(lock.base_debs, store, settings)
    return base_reference((make_base_layer(bootstrap_base(lock.file.debian, store).sha256, store=store),))


def without_networks(kit: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run envbuild in a kit, in a network namespace without any device where this user may make one."""
    nowhere = "http://127.0.0.1:9/"
    environment = {
        **os.environ,
        "ENVBUILD_STORE": str(kit / "store"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        **dict.fromkeys(("ENVBUILD_INDEX_URL", "ENVBUILD_DEBIAN_MIRROR", "ENVBUILD_DEBIAN_SECURITY_MIRROR"), nowhere),
        mirror_setting("tiny"): nowhere,
    }
    program = [sys.executable, "-c", "from builder.cli import main; main()", *arguments]
    alone = ["unshare", "--net"] if os.geteuid() == 0 and shutil.which("unshare") else []
    return subprocess.run([*alone, *program], cwd=kit, env=environment, capture_output=True, text=True, check=False)


def test_sources_from_git_and_from_an_index_end_in_the_image_and_in_a_kit(engine: DockerEngine, tmp_path: Path) -> None:
    python = system_python()
    head = commit(tmp_path / "repo", GIT)
    (tmp_path / "a.patch").write_text(PATCH, encoding="utf-8")
    text = RECIPE.replace("COMMIT", head).replace("FOLDER", str(tmp_path)).replace("PYTHON", python)
    (tmp_path / "r.yaml").write_text(text.replace("SUITE", "bookworm" if python == "3.11" else "trixie"))
    source = read_recipe(tmp_path / "r.yaml")
    index = PackageIndex()
    index.add_sdist("tiny-sdist", "1.0", SDIST)
    with serve(index):
        settings = settings_from({**os.environ, mirror_setting("tiny"): index.url})
        store = Store(tmp_path / "store")
        write_lock(workspace_of(source).lock, resolve_lock(source, None, store, settings))
        lock = current_lock(source, workspace_of(source).lock)
        for fetched in lock.sources.values():  # what another machine has to fetch again
            store.path(fetched.archive).unlink()
        tools = Tools(settings=settings, store=store, console=Console(), connect=lambda: engine)
        files = render_dockerfiles(source.recipe, lock)
        key = toolchain_key(files["Dockerfile.toolchain"], base_identity(lock), lock)
        base = _base_tag(lock, store, settings)
        was_there = engine.image_id(base) is not None
        try:
            image = build_recipe(source, lock, tools)
            script = "import tiny_git, tiny_sdist; print(tiny_git.ANSWER, tiny_sdist.HALF)"
            ended = engine.run(ContainerRun(image=image.reference, command=("python3", "-c", script)))
            export_kit(source, lock, tmp_path / "kit", tools)
            shutil.rmtree(tmp_path / "repo")
            for reference in (image.reference, toolchain_tag(key)):
                engine.remove_image(reference)
            moved = without_networks(tmp_path / "kit", "build", "r.yaml", "--json")
        finally:
            engine.remove_image(f"envbuild/{source.recipe.name}:latest")
            engine.remove_image(toolchain_tag(key))
            if not was_there:
                engine.remove_image(base)
    assert (ended.code, ended.stdout) == (0, b"42 21\n"), ended.stderr
    assert moved.returncode == 0, moved.stderr
    assert json.loads(moved.stdout)["image_id"] == image.image_id
    assert "compile" not in moved.stderr
    assert "fetch" not in moved.stderr
    wheels = [built_wheel(job, store) for job in plan_wheels(source, lock, key, store.path)]
    assert [wheel.filename if wheel else None for wheel in wheels] == [
        "tiny_git-7-py3-none-any.whl",
        "tiny_sdist-1.0-py3-none-any.whl",
    ]
    assert "nvidia" not in files["Dockerfile.toolchain"]
