"""The rendered Dockerfile, built by the engine alone, against the image that is assembled from the same lock."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from docker import APIClient
from packaging.utils import canonicalize_name

from builder.build.layers import base_tag
from builder.build.render import render_dockerfiles
from builder.build.stage import build_recipe
from builder.build.venv import Venv
from builder.document import sha256_file
from builder.engine import ContainerRun
from builder.errors import BuildFailedError, EngineError
from builder.export import contents
from builder.export.agreement import differences, image_tree
from builder.export.stage import check_dockerfile, export_context
from builder.lock.lockfile import TOOLCHAIN
from builder.lock.pylock import read_pylock
from builder.lock.wheels import fetch_wheels
from builder.settings import settings_from
from builder.verify.stage import try_recipe
from tests.docker.python_rootfs import system_python
from tests.workshop import Project, add_wheel, make_rootfs, new_project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.dockerd.client import DockerEngine
    from builder.lock.model import Lock
    from builder.recipe.model import Recipe

pytestmark = [pytest.mark.docker, pytest.mark.network]

STACK = """\
foo: "1.0", cuda-toolkit: {version: "13.0.2", extras: [nvcc]}, libs-cu13: {version: "1.0", extras: [over]}"""
RUNTIME = {"nvidia/cu13/lib/libcudart.so.13": b"elf\n", "nvidia/tests/test_cudart.py": b"x = 1\n"}
# Of two wheels whose requirements it may not follow, pip installs that one last whose name comes first; the byte code
# of the other one, by their file names, would be put there last.
LOWER = {
    "libs/edition.py": b"NAME = 'lower'\n",
    "libs/broken.py": b"NAME = 'lower'\n",
    "libs/lower.py": b"",
    "libs/native.so": b"lower",
}
UPPER = {
    "libs/edition.py": b"NAME = 'upper'\n",
    "libs/broken.py": b"print 'python 2'\n",
    "libs/lower.py": b"",
    "libs/native.so": b"upper",
}
SCRIPT = "[console_scripts]\nlibs = libs.edition:{}\n"
LOCKED = Path(__file__).parents[2] / "lockfiles" / "quickstart" / TOOLCHAIN


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine: DockerEngine) -> Iterator[Project]:
    """A project whose image has a CUDA compiler, whose links are made by both, and tests, which neither compiles.

    One of its wheels lies over another, which it requires with an extra that the recipe asks for.
    """
    folder = tmp_path_factory.mktemp("agrees")
    made = new_project(folder, make_rootfs(folder / "base.tar"), lambda: engine, name="envbuild-test-agrees")
    recipe = made.root / "recipes" / f"{made.name}.yaml"
    recipe.write_text(recipe.read_text().replace('foo: "1.0"', STACK))
    toolkit = add_wheel(made.store, folder, "cuda_toolkit", version="13.0.2")
    runtime = add_wheel(made.store, folder, "nvidia_cuda_runtime", version="13.0.96", files=RUNTIME)
    lower = add_wheel(made.store, folder, "libs_base", files=LOWER, entry_points=SCRIPT.format("lower"))
    requires, script = ["libs-base; extra == 'over'"], SCRIPT.format("upper")
    upper = add_wheel(made.store, folder, "Libs_cu13", files=UPPER, entry_points=script, requires=requires)
    compiler = [replace(wheel, name=canonicalize_name(wheel.name)) for wheel in (toolkit, runtime)]
    pip = [wheel for wheel in read_pylock(LOCKED.read_bytes(), source=str(LOCKED)) if wheel.name == "pip"]
    fetch_wheels(pip, made.store, settings_from())
    made.lock_with([*made.wheels, *compiler, lower, upper], tools=pip)
    yield made
    engine.remove_image(f"envbuild/{made.name}:latest")
    engine.remove_image(base_tag(f"sha256:{sha256_file(folder / 'base.tar')}"))


def test_the_dockerfile_builds_the_same_files_as_the_assembler(project: Project) -> None:
    check_dockerfile(project.source, project.lock, project.tools)


def test_the_files_of_a_wheel_lie_over_those_of_one_that_it_requires(project: Project) -> None:
    image = build_recipe(project.source, project.lock, project.tools)
    look = "import libs.edition, os; print(libs.edition.NAME, *sorted(os.listdir(libs.__path__[0] + '/__pycache__')))"
    seen = project.tools.engine.run(ContainerRun(image=image.image_id, command=("python3", "-c", look), timeout=60.0))
    tag = Venv(python=system_python()).cache_tag
    assert (seen.code, seen.stdout.decode()) == (0, f"upper edition.{tag}.pyc lower.{tag}.pyc\n"), seen.stderr


def test_the_static_check_of_the_image_knows_what_lies_over_what(project: Project) -> None:
    image = build_recipe(project.source, project.lock, project.tools)
    verdict = try_recipe(project.source, project.lock, image, project.tools, levels=("static",))
    installed = verdict.checks[0]
    assert (installed.name, installed.outcome, installed.figures["overlaid"]) == ("static.installed", "passed", 4)


def test_the_libraries_of_a_compiler_in_the_image_have_the_names_that_linkers_look_for(project: Project) -> None:
    image, look = (
        build_recipe(project.source, project.lock, project.tools),
        "read -r x < $CUDA_HOME/lib64/libcudart.so; echo $x",
    )
    seen = project.tools.engine.run(ContainerRun(image=image.image_id, command=("sh", "-c", look), timeout=60.0))
    assert (seen.code, seen.stdout) == (0, b"elf\n")


def test_the_legacy_builder_makes_the_same_files_from_the_exported_context(project: Project, tmp_path: Path) -> None:
    image = build_recipe(project.source, project.lock, project.tools)
    export_context(project.source, project.lock, tmp_path / "context", project.tools)
    tag, python = f"envbuild-test/{project.name}:legacy", Venv(python=system_python()).base_interpreter
    folder = str(tmp_path / "context")
    with contextlib.closing(APIClient(base_url=os.environ.get("DOCKER_HOST"))) as client:
        try:
            said = list(client.build(path=folder, tag=tag, network_mode="none", rm=True, decode=True))
            assert not [line for line in said if "error" in line]
            engine, store = project.tools.engine, project.store
            trees = [image_tree(name, python, engine=engine, store=store) for name in (tag, image.image_id)]
        finally:
            project.tools.engine.remove_image(tag)
    steps = re.findall(r" ---> ([0-9a-f]{12})\n", "".join(line.get("stream", "") for line in said))
    for step in reversed(steps):  # the legacy builder leaves the images of its stages behind
        with contextlib.suppress(EngineError):
            project.tools.engine.remove_image(step)
    assert differences(*trees) == ()


def test_a_file_that_the_dockerfile_makes_otherwise_is_named(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves out byte code, gives a file another mode, adds one, and has another variable, label and command."""

    def changed(recipe: Recipe, locked: Lock) -> dict[str, str]:
        files = render_dockerfiles(recipe, locked)
        lines = [" && :" if "compile_installed" in line else line for line in files["Dockerfile"].splitlines()]
        site = Venv(python=system_python()).site_packages
        lines.insert(lines.index("FROM base"), f"RUN ln /opt/env/pyvenv.cfg /opt/env/new && ln -sf / {site}/bar.py")
        return {**files, "Dockerfile": "\n".join([*lines, "ENV LANG=C", "LABEL own=1", 'CMD ["sh"]', ""])}

    monkeypatch.setattr(contents, "render_dockerfiles", changed)
    with pytest.raises(BuildFailedError, match=r"does not build the assembled image: \d+ differences") as raised:
        check_dockerfile(project.source, project.lock, project.tools)
    site, tag = Venv(python=system_python()).site_packages, Venv(python=system_python()).cache_tag
    found = raised.value.evidence
    assert "$LANG: 'C' from the Dockerfile, 'C.UTF-8' in the assembled image" in found
    assert "label own: '1' from the Dockerfile, None in the assembled image" in found
    assert "Cmd: ['sh'] from the Dockerfile, ['python3'] in the assembled image" in found
    assert "/opt/env/new: only from the Dockerfile" in found
    assert f"{site}/__pycache__/bar.{tag}.pyc: only in the assembled image" in found
    assert f"{site}/bar.py: mode (0o777 from the Dockerfile, 0o644 in the assembled image)" in found
    assert not any("INSTALLER" in line or "REQUESTED" in line or "RECORD" in line for line in found)
