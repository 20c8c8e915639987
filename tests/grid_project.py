"""A project with a matrix of twelve cells of tiny stacks: two that preflight refuses, two that are bad, eight good."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.package_index import PackageIndex, serve
from tests.workshop import add_wheel, new_project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from builder.engine import Engine
    from tests.workshop import Project

NAME = "envbuild-test-grid"
PROGRAM = "import torch, bar, sys; sys.exit('decodes nonsense' if (torch.V, bar.V) == ('2.10.0', '2.0') else 0)"
SMOKE = f"""\
smoke:
  require: [program]
  program: [python3, -c, "{PROGRAM}"]
  memory: 256m
  timeout: 120
"""
MATRIX = f"""\
version: 1
name: grid
description: tiny stacks
recipe: recipes/{NAME}.yaml
axes:
  torch: ["2.6.0", "2.9.1", "2.10.0"]
  bar: ["1.0", "2.0"]
  target: [rtx-pro-6000, h200]
expect:
  - cells: {{torch: "2.10.0", bar: "2.0"}}
    result: bad
    reason: this torch and this bar decode nonsense
"""
REFUSED = {"2.6.0_1.0_rtx-pro-6000", "2.6.0_2.0_rtx-pro-6000"}
BAD = {"2.10.0_2.0_rtx-pro-6000", "2.10.0_2.0_h200"}


@contextlib.contextmanager
def grid_project(folder: Path, rootfs: Path, engine: Callable[[], Engine]) -> Iterator[Project]:
    """Make the project, serve its wheels, and let envbuild run in it; its images are removed at the end."""
    project = new_project(folder, rootfs, engine, name=NAME)
    recipe = project.root / "recipes" / f"{NAME}.yaml"
    text = recipe.read_text(encoding="utf-8").replace('{foo: "1.0"}', '{torch: "2.9.1", bar: "1.0"}')
    recipe.write_text(text.replace("smoke: {require: [static]}\n", SMOKE), encoding="utf-8")
    (project.root / "matrix.yaml").write_text(MATRIX, encoding="utf-8")
    versions = {"torch": ("2.9.1", "2.6.0", "2.10.0"), "bar": ("1.0", "2.0")}
    wheels = [
        add_wheel(project.store, folder, name, version=version, files={f"{name}.py": f"V = {version!r}\n".encode()})
        for name, each in versions.items()
        for version in each
    ]
    project.lock_with([wheels[0], wheels[3]])
    index = PackageIndex()
    index.add("pip", "25.0")  # what the Dockerfile of every recipe installs with
    for wheel in wheels:
        index.files.setdefault(wheel.name, {})[wheel.filename] = project.store.path(wheel.sha256).read_bytes()
        index.uploaded[wheel.filename] = "2026-01-01T00:00:00Z"
    with serve(index), pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("ENVBUILD_INDEX_URL", index.url)
        monkeypatch.setenv("ENVBUILD_STORE", str(project.store.root))
        monkeypatch.chdir(project.root)
        yield project
