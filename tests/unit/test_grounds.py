"""A verdict holds as long as all that it stands on: one function says so to status, make, publish and the matrix."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.build.assembly import BuiltImage
from builder.console import Console
from builder.engine import Exit
from builder.matrix.trial import Bench, trial_key
from builder.recipe.workspace import workspace_of
from builder.status import status_of, status_table
from builder.verify.record import read_verdict
from builder.verify.stage import smoke_recipe, try_recipe
from builder.verify.verdict import Check
from tests.fakes import FakeEngine
from tests.publication import prove, proven_project

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.tools import Tools
    from tests.workshop import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return proven_project(tmp_path)


def rewrite(old: str, new: str) -> Callable[[Project], None]:
    def change(project: Project) -> None:
        text = project.source.path.read_text(encoding="utf-8")
        assert old in text
        project.source.path.write_text(text.replace(old, new), encoding="utf-8")

    return change


def image_made_otherwise(project: Project) -> None:
    from builder.build.stage import find_plan

    plan = find_plan(project.source, project.lock, project.store)
    assert plan is not None
    project.store.keep_result("image", plan.key, {"image_id": f"sha256:{'1' * 64}"})


CHANGES: dict[str, tuple[Callable[[Project], object], str]] = {
    "target": (rewrite("rtx-pro-6000", "h200"), "target.gpu (rtx-pro-6000 -> h200)"),
    "waiver": (rewrite("smoke:", "waive: {R05: on purpose}\nsmoke:"), "waive.R05 (none -> on purpose)"),
    "required level": (rewrite("[static]", "[static, cpu-decode]"), "smoke.require"),
    "serve": (rewrite("smoke:", "serve: {engine: sglang}\nsmoke:"), "serve (none -> "),
    "lock": (lambda project: project.lock_with(project.wheels[:1]), "its lock has changed since it was proven"),
    "checks": (lambda project: prove(project, suite_digest="0" * 64), "the checks have changed since it was proven"),
    "image": (image_made_otherwise, f"its image is sha256:{'1' * 12} now, the verdict is on sha256:"),
    "folder": (lambda project: prove(project, sources={"k": "0"}), "the files in k have changed since it was proven"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_status_sees_every_change_that_makes_a_verdict_stale(name: str, project: Project) -> None:
    change, sentence = CHANGES[name]
    assert status_of(project.source, project.store).stale is None
    change(project)
    assert sentence in str(status_of(project.source, project.store).stale)


def test_a_comment_changes_nothing(project: Project) -> None:
    rewrite("version: 1", "# what it is\nversion: 1")(project)
    assert status_of(project.source, project.store).stale is None


@pytest.mark.parametrize("name", ["target", "waiver", "required level", "serve"])
def test_the_matrix_tries_a_cell_again_where_its_verdict_would_be_stale(name: str, project: Project) -> None:
    def key() -> str:
        return trial_key(Bench(source=project.source, root=project.root), {})

    before = key()
    assert key() == before
    CHANGES[name][0](project)
    assert key() != before


def failing(project: Project) -> tuple[FakeEngine, BuiltImage, Tools]:
    """An engine in which no probe runs, an image that it has, and tools that use it."""
    engine = FakeEngine(answer=lambda _job: Exit(code=1))
    image = BuiltImage(reference="x", image_id=f"sha256:{'1' * 64}", manifest_digest="sha256:2", installed=())
    return engine, image, replace(project.tools, connect=lambda: engine)


def test_make_proves_again_what_stands_on_other_grounds_and_nothing_else(project: Project) -> None:
    engine, image, tools = failing(project)

    def runs() -> int:
        before = len(engine.runs)
        smoke_recipe(project.source, project.lock, image, tools)
        return len(engine.runs) - before

    assert [runs(), runs()] == [1, 0]
    rewrite("rtx-pro-6000", "h200")(project)  # the engine says the same image id: it is asked all the same
    assert [runs(), runs()] == [1, 0]
    verdict = read_verdict(workspace_of(project.source).verdict)
    assert verdict is not None
    assert (verdict.gpu, verdict.question) == ("h200", project.source.recipe.to_plain())


def test_a_verdict_for_another_gpu_says_which(project: Project) -> None:
    _, image, tools = failing(project)
    tried = try_recipe(project.source, project.lock, image, tools, levels=("static",), gpu="rtx-5090")
    assert tried.gpu == "rtx-5090"


def test_the_checks_of_a_verdict_stand_below_its_image_at_the_left(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    prove(project, checks=(Check(name="static.installed", level="static", outcome="passed", summary="word " * 30),))
    Console().show(status_table([status_of(project.source, project.store)], details=True))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "sha256:" in line and not line.startswith("sha256:")] == []
    assert any(line.startswith("sha256:") for line in lines)
