"""What differs between locks, revisions and images; the images are facts that a fake engine gives."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console as RichConsole

from builder.compare import inventory
from builder.compare.comparison import compare
from builder.compare.operands import read_operand
from builder.compare.table import comparison_table
from builder.console import Console
from builder.dockerd.image_facts import facts_of, layers_of
from builder.document import sha256_bytes
from builder.engine import Exit, ImageFacts, ImageLayer
from builder.errors import BuildFailedError, InvalidDocumentError, StaleLockError, UsageError
from builder.lock.model import LockedGit
from builder.lock.question import question_of
from builder.process import run
from builder.recipe.source import read_recipe
from builder.settings import settings_from
from builder.store import Store
from builder.tools import Tools
from tests.fakes import FakeEngine
from tests.sides import deb, debian_lock, wheel, write_lock_files
from tests.wheels import record_line

if TYPE_CHECKING:
    from builder.compare.comparison import Comparison
    from builder.engine import ContainerRun

QUESTION = {"python": {"stack": {"mine": {"dependencies": []}, "torch": {"version": "2.9.1"}}}}
RECIPE = """\
version: 1
name: x
target: {gpu: h200}
base: {debian: trixie}
python: "3.13"
stack:
  torch: "2.9.1"
"""
GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    engine = FakeEngine()
    return Tools(
        settings=settings_from({}),
        store=Store(tmp_path / "store"),
        console=Console(out=io.StringIO()),
        connect=lambda: engine,
    )


def fake(tools: Tools) -> FakeEngine:
    assert isinstance(tools.engine, FakeEngine)
    return tools.engine


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one recipe, its lock, and a second lock under `other`."""
    root = tmp_path / "project"
    (root / "recipes").mkdir(parents=True)
    (root / "recipes" / "x.yaml").write_text(RECIPE, encoding="utf-8")
    question = question_of(read_recipe(root / "recipes" / "x.yaml"))
    base = debian_lock(deb("libc6", "2.41-12", size=3000), deb("old", "1", size=50))
    write_lock_files(
        root / "lockfiles" / "x", question, base, (wheel("torch", "2.9.1", size=900), wheel("numpy", "2.0"))
    )
    moved = debian_lock(deb("libc6", "2.41-13", size=3500), deb("new", "2", size=70))
    write_lock_files(
        root / "other", QUESTION, moved, (wheel("torch", "2.9.1", size=900), wheel("numpy", "2.1", size=990))
    )
    return root


def seen(a: str, b: str, tools: Tools, root: Path) -> Comparison:
    return compare(read_operand(a, tools, root), read_operand(b, tools, root))


def lines(comparison: Comparison) -> list[str]:
    return [change.line for change in comparison.packages or ()]


def text(comparison: Comparison) -> str:
    out = io.StringIO()
    RichConsole(file=out, width=200).print(comparison_table(comparison))
    return out.getvalue()


def test_two_locks_differ_in_packages_versions_and_bytes(project: Path, tools: Tools) -> None:
    comparison = seen("recipes/x.yaml", "other", tools, project)
    assert lines(comparison) == [
        "debian: libc6 2.41-12 -> 2.41-13",
        "debian: + new 2",
        "debian: - old 1",
        "python: numpy 2.0 -> 2.1",
        "sources: + mine (local source)",
    ]
    totals = {total.world: total for total in comparison.totals}
    assert (totals["debian"].bytes_a, totals["debian"].bytes_b) == (3050, 3570)
    assert (totals["python"].packages_a, totals["python"].bytes_b) == (2, 1890)
    assert totals["sources"].bytes_b is None
    assert "+520 B" in text(comparison)
    assert not comparison.same


def test_a_lock_does_not_differ_from_itself(project: Path, tools: Tools) -> None:
    comparison = seen("recipes/x.yaml", "lockfiles/x", tools, project)
    assert comparison.same
    assert "nothing differs" in text(comparison)


def test_another_file_of_the_same_version_is_a_change(project: Path, tools: Tools, tmp_path: Path) -> None:
    for number in (1, 2):
        built = wheel("torch", "2.9.1", sha256=f"{number}" * 64)
        write_lock_files(tmp_path / f"l{number}", QUESTION, debian_lock(), (built,))
    comparison = seen(str(tmp_path / "l1"), str(tmp_path / "l2"), tools, project)
    assert lines(comparison) == ["python: torch 2.9.1 -> 2.9.1"]


def test_the_toolchain_is_a_part_of_its_own(tools: Tools, tmp_path: Path) -> None:
    for name, version in (("a", "1"), ("b", "2")):
        write_lock_files(
            tmp_path / name, QUESTION, debian_lock(toolchain=(deb("gcc", version),)), (), (wheel("pip", version),)
        )
    comparison = seen("a", "b", tools, tmp_path)
    assert lines(comparison) == ["debian (toolchain): gcc 1 -> 2", "python (toolchain): pip 1 -> 2"]


def test_a_commit_is_the_version_of_a_source(tools: Tools, tmp_path: Path) -> None:
    for name, commit in (("a", "1" * 40), ("b", "2" * 40)):
        source = LockedGit(
            name="sglang",
            url="https://example.org/s",
            commit=commit,
            tree=commit,
            archive=sha256_bytes(commit.encode()),
        )
        write_lock_files(tmp_path / name, QUESTION, debian_lock(), (), sources=(source,))
    assert lines(seen("a", "b", tools, tmp_path)) == [f"sources: sglang {'1' * 40} -> {'2' * 40}"]


def commit(root: Path, message: str) -> None:
    for command in (["add", "--all"], ["commit", "-q", "-m", message]):
        ended = run([*GIT, *command], cwd=root)
        assert ended.code == 0, ended.text


def test_a_revision_shows_the_lock_that_a_recipe_had(project: Path, tools: Tools) -> None:
    run([*GIT, "init", "-q"], cwd=project)
    commit(project, "one")
    question = question_of(read_recipe(project / "recipes" / "x.yaml"))
    write_lock_files(project / "lockfiles" / "x", question, debian_lock(), (wheel("torch", "2.9.1"),))
    commit(project, "two")
    assert lines(seen("HEAD~1:recipes/x.yaml", "recipes/x.yaml", tools, project)) == [
        "debian: - libc6 2.41-12",
        "debian: - old 1",
        "python: - numpy 2.0",
    ]
    assert seen("HEAD:recipes/x.yaml", "recipes/x.yaml", tools, project).same
    assert seen("HEAD~1:lockfiles/x", "HEAD~1:recipes/x.yaml", tools, project).same
    assert not seen("HEAD~1:lockfiles/x", "lockfiles/x", tools, project).same


def test_a_revision_is_one_of_the_repository_that_the_recipe_lies_in(
    project: Path, tools: Tools, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run([*GIT, "init", "-q"], cwd=project)
    commit(project, "one")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    recipe = project / "recipes" / "x.yaml"
    assert seen(f"HEAD:{recipe}", str(recipe), tools, elsewhere).same
    assert seen("HEAD:x.yaml", "x.yaml", tools, project / "recipes").same
    recipe.unlink()
    assert read_operand(f"HEAD:{recipe}", tools, elsewhere).packages
    recipe.parent.rmdir()
    assert read_operand(f"HEAD:{recipe}", tools, elsewhere).packages


def test_a_revision_that_is_not_there_or_has_no_lock_is_refused(project: Path, tools: Tools) -> None:
    run([*GIT, "init", "-q"], cwd=project)
    (project / "recipes" / "y.yaml").write_text(RECIPE.replace("name: x", "name: y"), encoding="utf-8")
    (project / "recipes" / "bad.yaml").write_text("version: 2\n", encoding="utf-8")
    commit(project, "one")
    with pytest.raises(UsageError, match="nowhere: no revision"):
        read_operand("nowhere:recipes/x.yaml", tools, project)
    with pytest.raises(UsageError, match=r"no such file at that revision"):
        read_operand("HEAD:recipes/z.yaml", tools, project)
    with pytest.raises(UsageError, match=r"^HEAD:lockfiles/y: no lock in this folder at that revision"):
        read_operand("HEAD:lockfiles/y", tools, project)
    with pytest.raises(StaleLockError, match=r"there was no lock in .*/lockfiles/y"):
        read_operand("HEAD:recipes/y.yaml", tools, project)
    with pytest.raises(InvalidDocumentError, match=r"^HEAD:recipes/bad\.yaml:1:1: base: missing"):
        read_operand("HEAD:recipes/bad.yaml", tools, project)


def test_what_is_nothing_is_refused_without_asking_the_engine_where_it_looks_like_a_recipe(
    project: Path, tools: Tools
) -> None:
    with pytest.raises(UsageError, match=r"recipes/z\.yaml: no such recipe"):
        read_operand("recipes/z.yaml", tools, project)
    assert "engine" not in vars(tools)
    with pytest.raises(UsageError, match="recipes: no lock in this folder"):
        read_operand("recipes", tools, project)
    with pytest.raises(UsageError, match="nope:latest is no file, no folder and no image"):
        read_operand("nope:latest", tools, project)
    with pytest.raises(UsageError, match="nope:5000/x is no file, no folder and no image"):
        read_operand("nope:5000/x", tools, project)


def test_a_recipe_without_a_lock_is_refused_and_one_with_a_stale_lock_is_named(
    project: Path, tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project / "recipes" / "x.yaml"
    path.write_text(RECIPE.replace("2.9.1", "2.9.0"), encoding="utf-8")
    read_operand("recipes/x.yaml", tools, project)
    assert "its lock is stale: changed since: python.stack.torch.version (2.9.1 -> 2.9.0)" in capsys.readouterr().err
    path.write_text(RECIPE.replace("name: x", "name: y"), encoding="utf-8")
    with pytest.raises(StaleLockError, match="there is no lock"):
        read_operand("recipes/x.yaml", tools, project)


def image(*layers: tuple[str, int], **more: dict[str, str]) -> ImageFacts:
    named = tuple(ImageLayer(diff_id=f"sha256:{title}", title=title, size=size) for title, size in layers)
    return ImageFacts(image_id=f"sha256:{layers[-1][0]}", layers=named, **more)


def answering(**packages: list[dict[str, object]]) -> Exit:
    report = {"debian": packages.get("debian", []), "python": packages.get("python", [])}
    return Exit(code=0, stdout=b"a banner\n" + json.dumps(report).encode() + b"\n")


def test_two_images_differ_in_packages_layers_and_settings(project: Path, tools: Tools) -> None:
    engine = fake(tools)
    engine.described = {
        "one:1": image(("base", 100), ("torch", 50), environment={"A": "1", "B": "2"}, labels={"l": "x"}),
        "one:2": image(("base", 100), ("torch2", 70), environment={"A": "1", "B": "3"}),
    }
    sizes = iter((40, 60))
    engine.answer = lambda _job: answering(
        python=[{"name": "torch", "version": "1", "bytes": next(sizes)}],
        debian=[{"name": "libc6", "version": "2", "bytes": 9}],
    )
    comparison = seen("one:1", "one:2", tools, project)
    assert lines(comparison) == ["python: torch 1 -> 1"]
    images = comparison.images
    assert images is not None
    assert [layer.title for layer in images.shared] == ["base"]
    assert [(layer.title, layer.bytes) for layer in (*images.only_a, *images.only_b)] == [("torch", 50), ("torch2", 70)]
    assert [(change.kind, change.name, change.a, change.b) for change in images.settings] == [
        ("environment", "B", "2", "3"),
        ("label", "l", "x", None),
    ]
    shown = text(comparison)
    assert "1 shared" in shown
    assert "+20 B" in shown


def test_a_lock_and_an_image_are_compared_by_what_both_can_show(project: Path, tools: Tools) -> None:
    engine = fake(tools)
    engine.described = {"x:1": image(("base", 100))}
    engine.answer = lambda _job: answering(
        debian=[{"name": "libc6", "version": "2.41-13", "bytes": 9_000}, {"name": "new", "version": "2", "bytes": 1}],
        python=[
            {"name": "torch", "version": "2.9.1", "bytes": 90_000},
            {"name": "numpy", "version": "2.2", "bytes": 1},
            {"name": "mine", "version": "0.1", "bytes": 1},
        ],
    )
    comparison = seen("other", "x:1", tools, project)
    assert lines(comparison) == ["python: numpy 2.1 -> 2.2"]
    assert not comparison.comparable
    assert comparison.images is None


@pytest.mark.parametrize("how", ["no python", "old python"])
def test_an_image_that_cannot_say_its_packages_is_still_compared_by_layers(
    how: str, project: Path, tools: Tools
) -> None:
    def answer(_job: ContainerRun) -> Exit:
        if how == "no python":
            raise BuildFailedError("the command 'python3' cannot start in the image one:1")
        return Exit(code=1, stderr=b"Traceback\nSyntaxError: invalid syntax\n")

    engine = fake(tools)
    engine.described = {"one:1": image(("base", 100)), "one:2": image(("base", 100), ("more", 1))}
    engine.answer = answer
    comparison = seen("one:1", "one:2", tools, project)
    assert comparison.packages is None
    assert comparison.silence is not None
    assert ("cannot start" if how == "no python" else "SyntaxError") in comparison.silence
    assert comparison.images is not None
    assert [layer.title for layer in comparison.images.only_b] == ["more"]
    assert "packages are not known" in text(comparison)


def test_an_image_is_looked_into_read_only_and_by_its_id(project: Path, tools: Tools) -> None:
    engine = fake(tools)
    engine.described = {"one:1": image(("base", 100))}
    engine.answer = lambda _job: answering()
    read_operand("one:1", tools, project)
    [job] = engine.runs
    assert (job.image, job.read_only_root, job.mounts[0].read_only) == ("sha256:base", True, True)
    assert job.mounts[0].source.read_bytes() == Path(inventory.__file__).read_bytes()


def test_the_inventory_reads_dpkg_and_leaves_out_what_was_removed(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text(
        "Package: libc6\nStatus: install ok installed\nInstalled-Size: 12\nVersion: 2.41-12\nDepends: x\n"
        " folded: y\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\n"
        "Package: tiny\nStatus: hold ok installed\nVersion: 2\n"
    )
    assert list(inventory.debian(status)) == [
        {"name": "libc6", "version": "2.41-12", "bytes": 12 * 1024},
        {"name": "tiny", "version": "2", "bytes": 0},
    ]
    assert inventory.debian(tmp_path / "nowhere") == []


def test_the_inventory_counts_what_a_record_gives_a_size_for() -> None:
    rows = inventory.recorded('a.py,sha256=x,10\n"b,c.py",sha256=y,5\n__pycache__/a.pyc,,\nRECORD,,\n', "/site")
    assert rows == [("/site/a.py", "sha256=x", 10), ("/site/b,c.py", "sha256=y", 5)]
    assert inventory.installed_bytes([rows]) == [15]


def test_the_inventory_counts_a_file_in_the_place_of_another_once(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").write_bytes(b"upper")
    below, above = (
        inventory.recorded(record_line("../bin/tool", data) + record_line("x.py", b"1"), f"{tmp_path}/site")
        for data in (b"lower", b"upper")
    )
    assert inventory.installed_bytes([below, above]) == [1, 6]


def test_the_inventory_runs_alone_and_reports_in_its_last_line() -> None:
    ended = run([sys.executable, "-I", inventory.__file__])
    assert ended.code == 0, ended.text
    report = json.loads(ended.stdout.decode().splitlines()[-1])
    found = {row["name"]: row for row in report["python"]}
    assert found["pytest"]["bytes"] > 10_000


HISTORY = [
    {"CreatedBy": "envbuild: torch 2.9.1", "Size": 50},
    {"CreatedBy": "/bin/sh -c #(nop)  ENV A=1", "Size": 0},
    {"CreatedBy": "/bin/sh -c apt-get   update", "Size": 100},
]


def test_the_words_and_sizes_of_layers_come_from_the_history_from_the_bottom() -> None:
    titles = [(layer.diff_id, layer.title, layer.size) for layer in layers_of(["a", "b"], HISTORY)]
    assert titles == [("a", "apt-get update", 100), ("b", "torch 2.9.1", 50)]
    assert [layer.title for layer in layers_of(["a", "b", "c"], HISTORY)] == [
        "apt-get update",
        "ENV A=1",
        "torch 2.9.1",
    ]


def test_where_the_history_does_not_say_which_layer_is_which_nothing_is_claimed() -> None:
    assert [(layer.title, layer.size) for layer in layers_of(["a"], HISTORY)] == [("", None)]


def test_an_image_without_settings_has_none() -> None:
    facts = facts_of({"Id": "sha256:1", "RootFS": {}, "Config": None}, [])
    assert (facts.layers, facts.environment, facts.labels) == ((), {}, {})
    config = {"Env": ["A=b=c"], "Labels": None}
    assert facts_of({"Id": "sha256:1", "RootFS": {}, "Config": config}, []).environment == {"A": "b=c"}


def test_how_an_image_runs_is_what_its_config_says_of_it() -> None:
    config = {"Cmd": ["python3"], "Entrypoint": None, "User": "0", "WorkingDir": "/"}
    facts = facts_of({"Id": "sha256:1", "RootFS": {}, "Config": config}, [])
    assert facts.run == {"Cmd": ["python3"]}
    assert facts_of({"Id": "1", "RootFS": {}, "Config": {"WorkingDir": "/a", "User": "1"}}, []).run == {
        "User": "1",
        "WorkingDir": "/a",
    }
