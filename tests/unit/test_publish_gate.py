"""What is published: only what is proven, as it was proven; and what it is called."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from builder.cli import run
from builder.errors import NotVerifiedError, UsageError
from builder.publish.gate import proven_image
from builder.publish.naming import fixed_tag, moving_tags
from builder.publish.policy import Policy
from builder.publish.promotion import promote_image
from builder.recipe.source import parse_recipe
from builder.recipe.workspace import workspace_of
from builder.registry.reference import Repository
from builder.verify.verdict import Check
from tests.fake_registry import FakeRegistry, running
from tests.publication import image_of, new_key, new_signer, prove, proven_project, put_image
from tests.workshop import RECIPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.workshop import Project

FAILED = Check(name="static.installed", level="static", outcome="failed", summary="a file is missing")
SKIPPED = Check(name="static", level="static", outcome="skipped", summary="no engine")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return proven_project(tmp_path)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with running(FakeRegistry()) as server:
        yield server


def rewrite(project: Project, old: str, new: str) -> None:
    text = project.source.path.read_text(encoding="utf-8")
    assert old in text
    project.source.path.write_text(text.replace(old, new), encoding="utf-8")


def append(project: Project, text: str) -> None:
    with project.source.path.open("a", encoding="utf-8") as file:
        file.write(text)


def edit_verdict(project: Project, old: str, new: str) -> None:
    path = workspace_of(project.source).verdict
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def forged_good(project: Project) -> None:
    prove(project, result="bad", checks=(FAILED,))
    edit_verdict(project, '"bad"', '"good"')
    edit_verdict(project, '"failed"', '"passed"')


def waiver_hidden(project: Project) -> None:
    forget_proofs(project)
    prove(project, waived={"R05": "it does not hold here"})
    edit_verdict(project, '"R05": "it does not hold here"', "")


def forget_proofs(project: Project) -> None:
    for kind, key in [*project.store.results()]:
        if kind == "verdict":
            project.store.forget_result(kind, key)


def relock(project: Project) -> None:
    project.lock_with(project.wheels[:1])


REFUSALS: dict[str, tuple[Callable[[Project], object], str]] = {
    "never proven": (lambda project: workspace_of(project.source).verdict.unlink(), "was never proven"),
    "bad": (lambda project: prove(project, result="bad", checks=(FAILED,)), "its verdict is bad"),
    "unverified": (lambda project: prove(project, result="unverified", checks=(SKIPPED,)), "its verdict is unverified"),
    "a changed lock": (relock, "its lock has changed since it was proven"),
    "a stale lock": (lambda project: rewrite(project, 'foo: "1.0"', 'foo: "1.1"'), "the lock in .* is stale"),
    "changed checks": (lambda project: prove(project, suite_digest="0" * 64), "the checks have changed"),
    "another serve": (
        lambda project: append(project, "serve: {engine: sglang}\n"),
        r"the recipe has changed since it was proven: serve \(none -> .*sglang",
    ),
    "a check that is required since": (
        lambda project: rewrite(project, "require: [static]", "require: [static, cpu-decode]"),
        r"the recipe has changed since it was proven: smoke\.require",
    ),
    "a waiver that is new": (
        lambda project: append(project, "waive: {R05: it does not hold here}\n"),
        r"the recipe has changed since it was proven: waive\.R05 \(none -> it does not hold here\)",
    ),
    "another description": (
        lambda project: rewrite(project, "small wheels", "tiny wheels"),
        "the recipe has changed since it was proven: description",
    ),
    "another target": (
        lambda project: rewrite(project, "rtx-pro-6000", "h200"),
        r"the recipe has changed since it was proven: target\.gpu \(rtx-pro-6000 -> h200\)",
    ),
    "changed files of its own": (
        lambda project: prove(project, sources={"kernels": "0" * 64}),
        "the files in kernels have changed since it was proven",
    ),
    "a verdict of before": (
        lambda project: prove(project, suite_digest="0" * 64, question={}),
        "the checks have changed since it was proven",
    ),
    "a verdict made good by hand": (forged_good, "the file was changed after its verdict was made"),
    "a figure changed by hand": (
        lambda project: edit_verdict(project, "all is there", "all is there, and fast"),
        "the file was changed after its verdict was made",
    ),
    "a waiver taken out by hand": (waiver_hidden, "this verdict was not made on this machine"),
    "a verdict of another machine": (forget_proofs, "this verdict was not made on this machine"),
    "an image made otherwise": (lambda project: put_image(project, b"2"), "the verdict is on sha256:"),
    "a verdict on another image": (
        lambda project: prove(project, image_id=f"sha256:{'1' * 64}"),
        "its image is sha256:",
    ),
    "no image": (
        lambda project: project.store.drop(image_of(project).layers[1].blob.digest.removeprefix("sha256:")),
        "that was proven is not on this machine",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_nothing_is_published_that_is_not_proven(
    name: str,
    project: Project,
    registry: FakeRegistry,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change, sentence = REFUSALS[name]
    assert proven_image(project.source, project.store).digest == image_of(project).manifest_digest
    change(project)
    with pytest.raises(NotVerifiedError, match=sentence):
        proven_image(project.source, project.store)
    monkeypatch.setenv("ENVBUILD_STORE", str(project.store.root))
    monkeypatch.setenv("KEY", new_key_pem())
    place = str(Repository(registry=registry.host, name="a/b"))
    for more in ([], ["--move-back"]):
        assert run(["publish", str(project.source.path), "--to", place, "--key", "env:KEY", "--json", *more]) == 10
        assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 10
    assert registry.log == []


def new_key_pem() -> str:
    return new_key().key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def test_the_tags_say_what_is_in_the_image(project: Project) -> None:
    image = proven_image(project.source, project.store)
    lock, digest = image.lock.digest[:12], image.digest.removeprefix("sha256:")[:8]
    assert fixed_tag(image) == f"small-sm120-{lock}-{digest}"
    assert moving_tags(image) == (f"small-sm120-{lock}", "small-sm120", "small")


def test_the_stack_is_a_part_of_the_tag_with_commits_short_and_local_versions_left_out(tmp_path: Path) -> None:
    project = proven_project(tmp_path)
    image = proven_image(project.source, project.store)
    text = RECIPE.format(name="glm5", python="3.11", suite="trixie").replace(
        'foo: "1.0"',
        f'torch: "2.9.1+cu130", sglang: {{git: "https://x/y", commit: "0123abcd{"0" * 32}"}}',
    )
    text += 'cuda: "13.1"\nserve: {engine: sglang}\n'
    recipe, complaints = parse_recipe(text)
    assert recipe is not None, complaints
    named = replace(image, recipe=recipe)
    assert moving_tags(named)[1] == "glm5-sm120-cu131-torch2.9.1-sglang0123abcd"
    assert moving_tags(named)[0] == f"glm5-sm120-cu131-torch2.9.1-sglang0123abcd-{image.lock.digest[:12]}"


def test_a_long_name_leaves_room_for_lock_and_image(tmp_path: Path) -> None:
    project = proven_project(tmp_path, name="a" * 80)
    image = proven_image(project.source, project.store)
    long = replace(image, recipe=image.recipe.model_copy(update={"name": "b-" * 60}))
    assert len(fixed_tag(long)) <= 128
    assert fixed_tag(long).endswith(f"-{image.lock.digest[:12]}-{image.digest[7:15]}")


QUICKSTART = str(Path(__file__).parents[2] / "recipes" / "quickstart.yaml")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["publish", QUICKSTART, "--to", "reg.example/b"], "who signs?"),
        (["publish", QUICKSTART, "--to", "reg.example/b", "--key", "k", "--keyless"], "--key and --keyless exclude"),
        (["publish", QUICKSTART, "--to", "reg.example/b", "--key", "k", "--trust-config", "c"], "with --keyless"),
        (["verify", "reg.example/a:1"], "who must have signed it?"),
        (["verify", "reg.example/a:1", "--identity", "a@b.c"], "give both --identity and --issuer"),
        (["verify", "reg.example/a:1", "--identity", "", "--issuer", "https://x"], "give both --identity and --issuer"),
        (["promote", "reg.example/a:1", "reg.example/b", "--issuer", "https://x"], "give both --identity and --issuer"),
        (["verify", "reg.example/a:1", "--key", "env:PUB", "--identity", "a@b.c"], "--key excludes --identity"),
        (["verify", "reg.example/a:1", "--key", "env:PUB", "--trust-root", "r"], "--key excludes --identity"),
        (["verify", "reg.example/a:1", "--key", "env:PUB", "--level", "nice"], "'nice' is none"),
        (["verify", "reg.example/a:1", "--key", "env:PUB", "--target", "rtx"], "no GPU 'rtx' is known"),
        (["verify", "reg.example/a:1", "--key", "env:PUB", "--max-age", "soon"], "'soon' is no age"),
        (["verify", "reg.example/A:1", "--key", "env:PUB"], "'A' is no part of a repository's name"),
        (["verify", "a", "--key", "env:PUB"], "'a' names no registry"),
        (["verify", "reg.example/a", "--key", "env:PUB"], "names a repository, but no image in it"),
        (["promote", "reg.example/a:1", "https://reg.example/b", "--key", "env:PUB"], "is a URL, not a reference"),
        (["promote", "reg.example/a:1", f"reg.example/b@sha256:{'1' * 64}", "--key", "env:PUB"], "names a digest"),
    ],
)
def test_a_wrong_line_is_refused_with_a_sentence(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ENVBUILD_SIGNING_KEY", raising=False)
    monkeypatch.setenv("PUB", new_key().public.pem)
    assert run(arguments) == 2
    assert sentence in capsys.readouterr().err


POLICY = """\
version: 1
target: rtx-pro-600
level: [static]
levels: [statick, cpu-decode]
max-age: soon
waivers: R05
signer: {identity: someone@example.org, issuers: "https://x"}
"""
COMPLAINTS = (
    r"2:1: target: no GPU 'rtx-pro-600' is known \(did you mean rtx-pro-6000",
    r"3:1: level: unknown key \(did you mean levels\?\)",
    r"4:10: levels\.0: 'statick' is not one of static, .*\(did you mean static\?\)",
    r"5:1: max-age: 'soon' is no age: write hours, days or weeks: 12h, 30d, 4w",
    r"6:1: waivers: a list is needed",
    r"7:1: signer\.issuer: missing: the address of the OIDC issuer",
    r"7:41: signer\.issuers: unknown key \(did you mean issuer\?\)",
)


def test_a_policy_is_told_all_its_faults_as_a_recipe_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    monkeypatch.setenv("PUB", new_key().public.pem)
    assert run(["verify", "reg.example/a:1", "--key", "env:PUB", "--policy", str(path)]) == 3
    lines = capsys.readouterr().err.splitlines()
    found = [line.partition(f"{path}:")[2] for line in lines if f"{path}:" in line]
    assert len(found) == len(COMPLAINTS), lines
    for line, complaint in zip(found, COMPLAINTS, strict=True):
        assert re.match(complaint, line), line


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("version: 2", ":1:1: version: 2 is not 1"),
        ("", ":1:1: the file is empty; a policy begins with `version: 1`"),
        ("version: [", ":2:1: "),
        ("- static", ":1:1: this is no mapping; a policy begins with `version: 1`"),
    ],
)
def test_what_is_no_policy_is_refused_with_its_place(
    text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    monkeypatch.setenv("PUB", new_key().public.pem)
    assert run(["verify", "reg.example/a:1", "--key", "env:PUB", "--policy", str(path)]) == 3
    assert f"{path}{sentence}" in capsys.readouterr().err


def test_a_policy_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "policy.yaml").touch()
    monkeypatch.setenv("PUB", new_key().public.pem)
    assert run(["verify", "reg.example/a:1", "--key", "env:PUB", "--policy", str(tmp_path / "polcy.yaml")]) == 2
    said = capsys.readouterr().err
    assert "polcy.yaml: no such policy" in said
    assert f"did you mean {tmp_path / 'policy.yaml'}?" in said


def test_a_layout_is_not_promoted_to_a_place_that_is_taken_and_nothing_is_read_before(
    project: Project, tmp_path: Path
) -> None:
    place = tmp_path / "layout.tar"
    place.write_bytes(b"mine")
    with pytest.raises(UsageError, match=f"{place} is there already"):
        promote_image("127.0.0.1:1/team:x", f"oci:{place}", new_signer().proof, Policy(), project.tools)
