"""Locking again lets only what is asked for move; the lock before is made by hand, uv asks an index of this machine."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from builder.console import Console
from builder.document import canonical_yaml, sha256_bytes
from builder.errors import StaleLockError, UsageError
from builder.lock.changes import changes_between
from builder.lock.lockfile import LOCK, PYLOCK, TOOLCHAIN
from builder.lock.model import DebianLock, DebianRelease, LockedDeb, LockFile
from builder.lock.pylock import write_pylock
from builder.lock.python import resolve_python
from builder.lock.question import question_of
from builder.lock.stage import lock_recipe, locked_recipe, previous_lock
from builder.lock.target import Target
from builder.lock.update import Update
from builder.lock.writing import write_lock
from builder.recipe.source import read_recipe
from builder.recipe.workspace import workspace_of
from builder.settings import settings_from
from builder.store import Store
from builder.tools import Tools
from tests.fakes import FakeEngine
from tests.package_index import PackageIndex, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.recipe.source import RecipeFile

RECIPE = """\
version: 1
name: x
target: {gpu: h200}
base: {debian: trixie}
python: "3.13"
stack:
  app: "1.0"
  other: "1.0"
"""
DEB = LockedDeb(
    name="libc6",
    version="2.41-12",
    architecture="amd64",
    archive="debian",
    filename="pool/l.deb",
    sha256="a" * 64,
    size=9,
)
DEBIAN = DebianLock(
    suite="trixie",
    releases=(DebianRelease(archive="debian", suite="trixie", date="2026-01-01T00:00:00Z", packages_sha256="b" * 64),),
    base=(DEB,),
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    index = PackageIndex()
    index.add("app", "1.0", "lib", "deep")
    index.add("other", "1.0")
    index.add("pip", "26.3")
    for version in ("1.0", "2.0"):
        index.add("lib", version, f"base>={version}")
        index.add("base", version)
        index.add("deep", version)
    with serve(index) as served:
        yield served


@pytest.fixture
def tools(index: PackageIndex, tmp_path: Path) -> Tools:
    return Tools(
        settings=settings_from({"ENVBUILD_INDEX_URL": index.url, "ENVBUILD_DEBIAN_MIRROR": "http://127.0.0.1:9/"}),
        store=Store(tmp_path / "store"),
        console=Console(out=io.StringIO()),
        connect=FakeEngine,
    )


@pytest.fixture
def source(tools: Tools, tmp_path: Path) -> RecipeFile:
    """A recipe whose lock has the old version of everything that is not pinned."""
    path = tmp_path / "recipes" / "x.yaml"
    path.parent.mkdir()
    path.write_text(RECIPE, encoding="utf-8")
    source = read_recipe(path)
    pylocks = {
        PYLOCK: locked(["app==1.0", "other==1.0", "lib==1.0", "base==1.0", "deep==1.0"], tools),
        TOOLCHAIN: locked(["pip==26.3"], tools),
    }
    digests = {name: sha256_bytes(data) for name, data in pylocks.items()}
    file = LockFile(question=question_of(source), debian=DEBIAN, python=digests, tools={})
    write_lock(workspace_of(source).lock, {**pylocks, LOCK: canonical_yaml(file.to_plain())})
    return source


def locked(requirements: list[str], tools: Tools) -> bytes:
    target = Target(python="3.13", glibc=41)
    wheels = resolve_python(requirements, target=target, store=tools.store, settings=tools.settings)
    return write_pylock(wheels, python="3.13")


def versions(source: RecipeFile) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in locked_recipe(source).wheels}


OLD = {"app": "1.0", "base": "1.0", "deep": "1.0", "lib": "1.0", "other": "1.0"}


def test_a_current_lock_stays_as_it_is_though_there_are_newer_versions(source: RecipeFile, tools: Tools) -> None:
    before = previous_lock(source)
    assert lock_recipe(source, tools) == before
    assert versions(source) == OLD


def test_one_package_moves_with_what_it_forces_and_nothing_else(source: RecipeFile, tools: Tools) -> None:
    lock_recipe(source, tools, update=Update(names=("Lib",)))
    assert versions(source) == {**OLD, "lib": "2.0", "base": "2.0"}


def test_several_packages_move_together(source: RecipeFile, tools: Tools) -> None:
    lock_recipe(source, tools, update=Update(names=("base", "deep")))
    assert versions(source) == {**OLD, "base": "2.0", "deep": "2.0"}


def test_debian_stays_where_only_python_is_asked_to_move(source: RecipeFile, tools: Tools) -> None:
    lock_recipe(source, tools, update=Update(names=("lib",)))
    assert locked_recipe(source).file.debian == DEBIAN


def test_a_changed_pin_moves_neither_debian_nor_the_other_packages(source: RecipeFile, tools: Tools) -> None:
    source.path.write_text(RECIPE.replace('  other: "1.0"\n', ""), encoding="utf-8")
    changed = read_recipe(source.path)
    lock = lock_recipe(changed, tools)
    assert {wheel.name: wheel.version for wheel in lock.wheels} == {
        name: version for name, version in OLD.items() if name != "other"
    }
    assert lock.file.debian == DEBIAN


def test_what_an_override_leaves_out_is_left_out_of_the_image_alone(source: RecipeFile, tools: Tools) -> None:
    absent = "{absent: true, reason: nothing calls it}"
    source.path.write_text(f"{RECIPE}overrides: {{deep: {absent}, pip: {absent}}}\n", encoding="utf-8")
    lock = lock_recipe(read_recipe(source.path), tools)
    assert {wheel.name for wheel in lock.wheels} == OLD.keys() - {"deep"}
    assert [wheel.name for wheel in lock.toolchain_wheels] == ["pip"]


@pytest.mark.parametrize("update", [Update(names=("debian",)), Update(everything=True)])
def test_debian_is_asked_for_anew_where_it_may_move(
    update: Update, source: RecipeFile, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = DEBIAN.model_copy(update={"base": (DEB.model_copy(update={"version": "2.41-13"}),)})
    monkeypatch.setattr("builder.lock.resolve.resolve_debian", lambda *_: moved)
    before = previous_lock(source)
    changes = changes_between(before, lock_recipe(source, tools, update=update))
    assert "debian: libc6 2.41-12 -> 2.41-13" in [change.line for change in changes]


def test_everything_moves_when_all_are_let_go(
    source: RecipeFile, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.lock.resolve.resolve_debian", lambda *_: DEBIAN)
    lock_recipe(source, tools, update=Update(everything=True))
    assert versions(source) == {"app": "1.0", "base": "2.0", "deep": "2.0", "lib": "2.0", "other": "1.0"}


@pytest.mark.parametrize(
    ("name", "message", "remedy"),
    [
        ("lbi", "the lock of x has no package 'lbi'", "did you mean lib"),
        ("qqqqqq", "the lock of x has no package 'qqqqqq'", "look it up"),
        ("libc6", "libc6 is a Debian package", "--update debian"),
    ],
)
def test_a_name_that_the_lock_does_not_have_is_a_usage_error(
    name: str, message: str, remedy: str, source: RecipeFile, tools: Tools
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        lock_recipe(source, tools, update=Update(names=("lib", name)))
    assert remedy in caught.value.remedy
    assert caught.value.exit_code == 2
    assert versions(source) == OLD


def test_what_is_pinned_does_not_move_and_the_pin_is_named(
    source: RecipeFile, tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    lock_recipe(source, tools, update=Update(names=("app",)))
    said = capsys.readouterr().err
    assert f"{source.path}:7:3: stack.app: app is pinned to 1.0 here" in said
    assert "no package changed" in said


def test_without_a_lock_there_is_nothing_to_update(source: RecipeFile, tools: Tools) -> None:
    (workspace_of(source).lock / LOCK).unlink()
    with pytest.raises(StaleLockError, match="there is no lock to update"):
        lock_recipe(source, tools, update=Update(names=("lib",)))


def test_a_torn_lock_is_made_anew_and_not_in_the_way(
    source: RecipeFile, tools: Tools, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (workspace_of(source).lock / PYLOCK).write_bytes(b"torn")
    monkeypatch.setattr("builder.lock.resolve.resolve_debian", lambda *_: DEBIAN)
    lock_recipe(source, tools)
    assert versions(source)["lib"] == "2.0"
    assert "is damaged: it is made anew" in capsys.readouterr().err


def test_what_changed_is_shown_at_the_end(source: RecipeFile, tools: Tools, capsys: pytest.CaptureFixture[str]) -> None:
    before = previous_lock(source)
    after = lock_recipe(source, tools, update=Update(names=("lib",)))
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert lines[-2:] == ["python: base 1.0 -> 2.0", "python: lib 1.0 -> 2.0"]
    assert [change.name for change in changes_between(before, after)] == ["base", "lib"]


def test_a_resolution_that_fails_leaves_the_old_lock_whole(
    source: RecipeFile, index: PackageIndex, tools: Tools
) -> None:
    files = {path.name: path.read_bytes() for path in workspace_of(source).lock.iterdir()}
    source.path.write_text(RECIPE.replace('other: "1.0"', 'other: "7.0"'), encoding="utf-8")
    with pytest.raises(Exception, match="no set of wheels") as caught:
        lock_recipe(read_recipe(source.path), tools)
    assert f"{source.path}:8:3: stack.other: other==7.0 is asked for" in getattr(caught.value, "evidence", ())
    assert {path.name: path.read_bytes() for path in workspace_of(source).lock.iterdir()} == files
