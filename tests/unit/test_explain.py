"""Who wants a package: chains through handmade wheels of an index on this machine, and through handmade .debs."""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING

import pytest

from builder.console import Console
from builder.errors import ResolveError, StaleLockError, UsageError
from builder.explain.debian import SMALLEST, Control, read_control, wants_of
from builder.explain.graph import Edge, chains_to
from builder.explain.stage import explain_package
from builder.explain.text import explanation_lines
from builder.lock.project import local_projects
from builder.lock.python import resolve_wheels
from builder.lock.question import question_of
from builder.lock.requirements import requirements_of, toolchain_requirements
from builder.process import run
from builder.recipe.source import read_recipe
from builder.recipe.workspace import workspace_of
from builder.settings import settings_from
from builder.store import Store
from builder.tools import Tools
from tests.fakes import FakeEngine
from tests.package_index import PackageIndex, serve
from tests.sides import deb, debian_lock, write_lock_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.recipe.source import RecipeFile

RECIPE = """\
version: 1
name: x
target: {{gpu: h200}}
base: {{debian: trixie, packages: [libtiny]}}
python: "3.13"
indexes:
  more: {{url: "{url}", packages: [torch]}}
stack:
  app: "1.0"
  torch: {{version: "2.0", extras: [fast]}}
  mine:
    path: mine
overrides:
  lib: {{version: "3.0", reason: "the cap of app is too strict"}}
  idle-lib: {{absent: true, reason: "nothing calls it"}}
"""
MINE = """\
[build-system]
requires = ["maker>=1"]
[project]
name = "mine"
version = "1"
dependencies = ["lib>=1"]
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("HOME", str(tmp_path))
    index = PackageIndex(metadata=True)
    index.add("app", "1.0", "lib<3", "middle; sys_platform == 'linux'", "idle-lib", "winlib; sys_platform == 'win32'")
    index.add("torch", "2.0", "deep==1.0; extra == 'fast'", "lib; extra == 'slow'")
    index.add("lib", "3.0")
    index.add("middle", "1.0", "deep")
    index.add("deep", "1.0", "lib<4,!=2")
    for tool in ("maker", "build", "pip"):
        index.add(tool, "5.0")
    with serve(index) as served:
        yield served


@pytest.fixture
def tools(index: PackageIndex, tmp_path: Path) -> Tools:
    return Tools(
        settings=settings_from({"ENVBUILD_INDEX_URL": index.url}),
        store=Store(tmp_path / "store"),
        console=Console(out=io.StringIO()),
        connect=FakeEngine,
    )


@pytest.fixture
def source(index: PackageIndex, tools: Tools, tmp_path: Path) -> RecipeFile:
    path = tmp_path / "recipes" / "x.yaml"
    (path.parent / "mine").mkdir(parents=True)
    (path.parent / "mine" / "pyproject.toml").write_text(MINE, encoding="utf-8")
    path.write_text(RECIPE.format(url=index.url), encoding="utf-8")
    source = read_recipe(path)
    projects = local_projects(source)
    stack, toolchain = (
        resolve_wheels(
            source.recipe, requirements(source.recipe, projects), tools.store, tools.settings, absent=["idle-lib"]
        )
        for requirements in (requirements_of, toolchain_requirements)
    )
    debian = debian_lock(*(each for each in DEBS if each.name != "gcc"), toolchain=(deb("gcc", "14"),))
    write_lock_files(workspace_of(source).lock, question_of(source), debian, stack, toolchain)
    return source


DEBS = (deb("libtiny", "1.1"), deb("gcc", "14"))


def said(source: RecipeFile, package: str, tools: Tools) -> list[str]:
    return list(explanation_lines(explain_package(source, package, tools)))


def test_everyone_who_wants_a_package_is_shown_the_shortest_chain_first_with_what_overrules_them(
    source: RecipeFile, tools: Tools
) -> None:
    path = source.path
    assert said(source, "Lib", tools)[2:] == [
        f"  {path}:11:3: stack.mine: lib>=1",
        f"  {path}:9:3: stack.app: app==1.0 -> app 1.0 needs lib<3",
        f"    overruled by {path}:14:3: overrides.lib: 3.0: the cap of app is too strict",
        f"  {path}:10:3: stack.torch: torch[fast]==2.0 -> torch[fast] 2.0 needs deep==1.0 -> deep 1.0 needs lib!=2,<4",
    ]


def test_the_version_and_the_index_are_named(source: RecipeFile, index: PackageIndex, tools: Tools) -> None:
    assert said(source, "torch", tools)[:2] == [
        f"torch 2.0, python in the image, {len(index.files['torch']['torch-2.0-py3-none-any.whl'])} B",
        f"  from the index 'more' of the recipe ({index.url})",
    ]
    assert said(source, "deep", tools)[1] == "  from the default index"


def test_a_requirement_of_another_platform_or_of_an_extra_nobody_asked_for_is_no_want(
    source: RecipeFile, tools: Tools
) -> None:
    assert not any("extra" in line or "winlib" in line for line in said(source, "lib", tools))
    with pytest.raises(UsageError, match="has no package 'winlib'"):
        explain_package(source, "winlib", tools)


def test_a_package_of_the_toolchain_is_wanted_by_what_is_compiled(source: RecipeFile, tools: Tools) -> None:
    lines = said(source, "maker", tools)
    assert lines[0].startswith("maker 5.0, python in the toolchain")
    assert lines[2:] == [f"  {source.path}:11:3: stack.mine: maker>=1"]


def test_a_package_that_is_built_here_is_wanted_by_the_recipe(source: RecipeFile, tools: Tools) -> None:
    assert said(source, "mine", tools) == [
        "mine (local source), sources in the image",
        "  built from source: mine",
        f"  {source.path}:11:3: stack.mine: mine",
    ]


def test_the_index_is_asked_for_metadata_once_and_for_no_wheel(
    source: RecipeFile, index: PackageIndex, tools: Tools
) -> None:
    index.asked.clear()
    first = said(source, "deep", tools)
    assert [path for path in index.asked if path.endswith(".metadata")]
    assert not [path for path in index.asked if path.endswith(".whl")]
    index.asked.clear()
    assert said(source, "deep", tools) == first
    assert index.asked == []


def test_wheels_in_the_store_are_read_without_the_index(source: RecipeFile, index: PackageIndex, tools: Tools) -> None:
    for files in index.files.values():
        for data in files.values():
            tools.store.add_bytes(data)
    index.asked.clear()
    assert said(source, "lib", tools)[-1].endswith("deep 1.0 needs lib!=2,<4")
    assert index.asked == []


def test_a_wheel_that_is_nowhere_any_more_is_named(source: RecipeFile, index: PackageIndex, tools: Tools) -> None:
    index.files["middle"] = {}
    with pytest.raises(ResolveError, match=r"does not have middle-1\.0-py3-none-any\.whl"):
        explain_package(source, "lib", tools)


@pytest.mark.parametrize(
    ("package", "advice"),
    [("tourch", "did you mean torch?"), ("gcc", "did you mean deb:gcc?"), ("deb:libtin", "did you mean deb:libtiny?")],
)
def test_a_package_that_is_not_locked_is_refused_with_the_nearest_names(
    package: str, advice: str, source: RecipeFile, tools: Tools
) -> None:
    with pytest.raises(UsageError, match=f"the lock of x has no package '{package}'") as caught:
        explain_package(source, package, tools)
    assert caught.value.remedy == advice


def test_a_package_that_an_override_leaves_out_is_named_with_the_place_and_the_reason(
    source: RecipeFile, tools: Tools
) -> None:
    with pytest.raises(UsageError) as caught:
        explain_package(source, "idle_lib", tools)
    place = f"{source.path}:15:3: overrides.idle-lib"
    assert str(caught.value) == f"the lock of x has no package 'idle_lib': {place} leaves it out: nothing calls it"
    assert caught.value.remedy == ""


def test_without_a_current_lock_nothing_is_explained(source: RecipeFile, tools: Tools) -> None:
    text = source.path.read_text(encoding="utf-8")
    source.path.write_text(text.replace('app: "1.0"', 'app: "1.1"'), encoding="utf-8")
    with pytest.raises(StaleLockError, match=r"python\.stack\.app\.version \(1\.0 -> 1\.1\)"):
        explain_package(read_recipe(source.path), "lib", tools)


def edge(owner: str, *leads_to: str) -> Edge[str]:
    return Edge(owner=owner, label=owner, text=",".join(leads_to), leads_to=leads_to)


def test_the_chain_to_each_owner_is_the_shortest_and_circles_end() -> None:
    graph = {"a": ("b", "c"), "b": ("a", "c"), "c": ("b", "x"), "d": ("x",)}
    first = [edge("", "a"), edge("", "d")]
    chains = chains_to(
        lambda node: node == "x", first, lambda node: (edge(node, other) for other in graph.get(node, ()))
    )
    assert [[step.owner for step in chain] for chain in chains] == [["", "d"], ["", "a", "c"]]


CONTROLS = {
    "apt": Control(depends=("libc6 (>= 2.38)", "gpgv | sqv"), provides=(), required=True),
    "sqv": Control(depends=("libc6",), provides=("verifier",), required=False),
    "libc6": Control(depends=(), provides=(), required=True),
    "asked": Control(depends=("verifier (= 1)",), provides=(), required=False),
}
VERSIONS = {"apt": "3.0", "sqv": "1.3", "libc6": "2.41", "asked": "1"}


def chains(name: str) -> list[str]:
    asking = (("S", "apt"), ("R", "asked"))
    first = [Edge(owner=None, label=label, text=own, leads_to=(own,)) for label, own in asking]
    return [
        " -> ".join(f"{link.owner}: {link.requirement}" for link in want.chain)
        for want in wants_of(name, first, CONTROLS, VERSIONS)
    ]


def test_alternatives_and_virtual_packages_lead_to_what_is_locked() -> None:
    assert chains("sqv") == ["S: apt -> apt 3.0: gpgv | sqv", "R: asked -> asked 1: verifier (= 1)"]
    assert chains("libc6") == [
        "S: apt -> apt 3.0: libc6 (>= 2.38)",
        "S: apt -> apt 3.0: gpgv | sqv -> sqv 1.3: libc6",
    ]


def test_the_fields_of_a_deb_are_read_with_their_folded_lines() -> None:
    text = (
        "Package: x\nPre-Depends: libc6 (>= 2.34)\nDepends: a (>= 1:2) | b:any,\n c\nProvides: v (= 1), w\n"
        "Priority: required\nDescription: d\n Depends: no\n"
    )
    assert read_control(text) == Control(
        depends=("libc6 (>= 2.34)", "a (>= 1:2) | b:any", "c"), provides=("v", "w"), required=True
    )
    assert read_control("Package: x\n") == Control(depends=(), provides=(), required=False)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
def test_a_debian_package_is_explained_from_the_debs_in_the_store(tools: Tools, tmp_path: Path) -> None:
    path = tmp_path / "recipes" / "y.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        'version: 1\nname: y\ntarget: {gpu: h200}\nbase: {debian: trixie, packages: [libtiny]}\npython: "3.13"\n'
        'stack: {app: "1.0"}\n',
        encoding="utf-8",
    )
    source = read_recipe(path)
    debs = tuple(
        deb(name, "1", sha256=tools.store.add(made_deb(tmp_path, name, fields)))
        for name, fields in (
            ("libtiny", "Depends: libc6 (>= 2.38)"),
            ("libc6", "Priority: required"),
            ("python3", "Depends: libtiny | nothing"),
        )
    )
    write_lock_files(workspace_of(source).lock, question_of(source), debian_lock(*debs), ())
    lines = said(source, "deb:libtiny", tools)
    assert lines[0] == "libtiny 1, debian in the image, 1.0 kB"
    assert lines[1] == "  from Debian trixie, archive debian"
    assert lines[2:] == [
        f"  {path}:4:24: base.packages: libtiny",
        "  every image of envbuild: python3 -> python3 1 needs libtiny | nothing",
    ]
    assert f"  {SMALLEST}" in said(source, "deb:libc6", tools)


def made_deb(folder: Path, name: str, fields: str) -> Path:
    root = folder / "deb" / name
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN" / "control").write_text(
        f"Package: {name}\nVersion: 1\nArchitecture: amd64\nMaintainer: t <t@example.org>\n{fields}\nDescription: d\n"
    )
    path = folder / f"{name}.deb"
    ended = run(["dpkg-deb", "--build", "--root-owner-group", str(root), str(path)])
    assert ended.code == 0, ended.text
    return path
