"""Git sources: exactly the commit's bytes, whatever git's configuration on this machine says."""

from __future__ import annotations

import io
import json
import os
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from builder.errors import EnvbuildError, InvalidDocumentError, ResolveError
from builder.lock.git import resolved_url
from builder.lock.model import LockedGit
from builder.lock.sources import locked_source, restore_source, source_declarations
from builder.lock.wish import wishes_of
from builder.recipe.model import Recipe
from builder.recipe.source import RecipeFile
from builder.settings import settings_from
from builder.store import Store
from tests.git_repositories import commit, git

if TYPE_CHECKING:
    from pathlib import Path

    from builder.lock.sources import Source
    from builder.lock.wish import Wish

PYPROJECT = '[project]\nname = "pkg"\nversion = "1"\ndependencies = ["numpy"]\n'
CODE = "".join(f"line {number}\n" for number in range(1, 31))
FILES = {"python/pyproject.toml": PYPROJECT, "python/pkg/__init__.py": CODE, "windows.bat": "a\r\nb\r\n"}
PATCH = """--- a/python/pkg/__init__.py
+++ b/python/pkg/__init__.py
@@ -2,3 +2,3 @@
 line 2
-line 3
+line three
 line 4
@@ -19,3 +19,4 @@
 line 19
 line 20
+line 20 and a half
 line 21
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)


def wish(folder: Path, store: Store, **package: Any) -> Wish:
    plain = {
        "version": 1,
        "name": "x",
        "target": {"gpu": "h200"},
        "base": {"debian": "trixie"},
        "python": "3.13",
        "stack": {"pkg": {"build": {}, **package}},
    }
    recipe = Recipe.from_json(json.dumps(plain), source="test")
    source = RecipeFile(path=folder / "recipe.yaml", recipe=recipe)
    return wishes_of(source, store, settings_from({"ENVBUILD_STORE": str(store.root)}))[0]


def lock(folder: Path, store: Store, repository: Path, head: str, **package: Any) -> LockedGit:
    found = locked_source(wish(folder, store, git=str(repository), commit=head, **package))
    assert isinstance(found, LockedGit)
    return found


def contents(source: Source, store: Store) -> dict[str, bytes]:
    with tarfile.open(store.path(source.archive)) as tar:
        return {member.name: (tar.extractfile(member) or io.BytesIO()).read() for member in tar if member.isfile()}


def test_a_commit_is_locked_by_its_tree_and_its_files_by_their_bytes(tmp_path: Path, store: Store) -> None:
    head = commit(tmp_path / "repo", FILES)
    commit(tmp_path / "repo", {"later.txt": "x"})
    locked = lock(tmp_path, store, tmp_path / "repo", head, subdirectory="python")
    assert locked.tree == git(tmp_path / "repo", "rev-parse", f"{head}^{{tree}}")
    assert locked.subdirectory == "python"
    assert contents(locked, store) == {name: text.encode() for name, text in FILES.items()}
    declared = source_declarations(locked, wish(tmp_path, store, git="x", commit=head, subdirectory="python"))
    assert declared.dependencies == ("numpy",)


def test_neither_configuration_nor_mask_nor_another_store_changes_the_archive(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain.patch").write_text(PATCH, encoding="utf-8")
    files = FILES | {".gitattributes": "*.py text eol=crlf export-subst\nwindows.bat export-ignore\n"}
    head = commit(tmp_path / "repo", files)
    first = lock(tmp_path, store, tmp_path / "repo", head, patches=["plain.patch"])
    (tmp_path / ".gitconfig").write_text("[core]\n\tautocrlf = true\n\teol = crlf\n[apply]\n\twhitespace = fix\n")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(tmp_path / "elsewhere"))
    before = os.umask(0o077)
    try:
        again = lock(tmp_path, Store(tmp_path / "other"), tmp_path / "repo", head, patches=["plain.patch"])
    finally:
        os.umask(before)
    assert again == first
    assert not (tmp_path / "elsewhere").exists()
    assert "windows.bat" in contents(first, store)


def test_executable_bits_and_links_are_kept(tmp_path: Path, store: Store) -> None:
    commit(tmp_path / "repo", FILES)
    (tmp_path / "repo" / "link").symlink_to("python/pkg")
    (tmp_path / "repo" / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "repo" / "run.sh").chmod(0o755)
    git(tmp_path / "repo", "add", "link", "run.sh")
    git(tmp_path / "repo", "commit", "--quiet", "--message", "y")
    locked = lock(tmp_path, store, tmp_path / "repo", git(tmp_path / "repo", "rev-parse", "HEAD"))
    with tarfile.open(store.path(locked.archive)) as tar:
        assert tar.getmember("link").linkname == "python/pkg"
        assert tar.getmember("run.sh").mode == 0o755
        assert tar.getmember("windows.bat").mode == 0o644
        assert {(member.mtime, member.uid, member.uname) for member in tar} == {(0, 0, "")}


def test_submodules_come_with_the_commit_also_by_relative_addresses(tmp_path: Path, store: Store) -> None:
    deepest = commit(tmp_path / "deepest", {"c.txt": "c"})
    inner = commit(tmp_path / "inner", {"b.txt": "b"}, modules={"deep": ("../deepest", deepest)})
    head = commit(tmp_path / "repo", FILES, modules={"third/inner": ("../inner", inner)})
    locked = lock(tmp_path, store, tmp_path / "repo", head)
    assert [(each.path, each.url, each.commit) for each in locked.submodules] == [
        ("third/inner", str(tmp_path / "inner"), inner),
        ("third/inner/deep", str(tmp_path / "deepest"), deepest),
    ]
    found = contents(locked, store)
    assert (found["third/inner/b.txt"], found["third/inner/deep/c.txt"]) == (b"b", b"c")


@pytest.mark.parametrize(
    ("parent", "url", "expected"),
    [
        ("https://example.org/a/b.git", "../c.git", "https://example.org/a/c.git"),
        ("https://example.org/a/b.git/", "../../d/c", "https://example.org/d/c"),
        ("ssh://git@example.org/a/b", "./c", "ssh://git@example.org/a/b/c"),
        ("https://example.org/a/b", "https://example.com/c", "https://example.com/c"),
    ],
)
def test_a_relative_address_starts_at_the_parents(parent: str, url: str, expected: str) -> None:
    assert resolved_url(parent, url) == expected


def test_patches_change_the_source_and_are_locked_by_their_bytes(tmp_path: Path, store: Store) -> None:
    head = commit(tmp_path / "repo", FILES)
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a.patch").write_text(PATCH, encoding="utf-8")
    plain = lock(tmp_path, store, tmp_path / "repo", head)
    patched = lock(tmp_path, store, tmp_path / "repo", head, patches=["p/a.patch"])
    assert patched.archive != plain.archive
    assert patched.tree == plain.tree
    assert [patch.file for patch in patched.patches] == ["p/a.patch"]
    code = contents(patched, store)["python/pkg/__init__.py"].decode()
    assert code == CODE.replace("line 3\n", "line three\n").replace("line 20\n", "line 20\nline 20 and a half\n")


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        (
            PATCH.replace(" line 19", " line nineteen"),
            r"a\.patch does not apply: hunk 2 \(@@ -19,3 \+19,4 @@\) of python/pkg/__init__\.py does not fit",
        ),
        (PATCH.replace("__init__", "nothing"), r"a\.patch does not apply: python/pkg/nothing\.py: No such file"),
        ("not a patch\n", r"a\.patch does not apply: No valid patches in input"),
        ("--- /dev/null\n+++ b/../../outside.py\n@@ -0,0 +1 @@\n+x\n", r"a\.patch does not apply: invalid path '\.\."),
    ],
)
def test_a_patch_that_does_not_fit_is_named_with_file_and_hunk(
    patch: str, said: str, tmp_path: Path, store: Store
) -> None:
    head = commit(tmp_path / "repo", FILES)
    (tmp_path / "a.patch").write_text(patch, encoding="utf-8")
    with pytest.raises(ResolveError, match=rf"stack\.pkg\.patches: {said}") as caught:
        lock(tmp_path, store, tmp_path / "repo", head, patches=["a.patch"])
    assert caught.value.exit_code == 6


def test_a_patch_file_that_is_not_there_is_named(tmp_path: Path, store: Store) -> None:
    head = commit(tmp_path / "repo", FILES)
    with pytest.raises(InvalidDocumentError, match=r"stack\.pkg\.patches: .*no\.patch cannot be read"):
        lock(tmp_path, store, tmp_path / "repo", head, patches=["no.patch"])


def test_a_commit_that_the_repository_does_not_have_is_named(tmp_path: Path, store: Store) -> None:
    commit(tmp_path / "repo", FILES)
    with pytest.raises(ResolveError, match=rf"stack\.pkg\.git: {tmp_path}/repo has no commit {'1' * 40}$") as caught:
        lock(tmp_path, store, tmp_path / "repo", "1" * 40)
    assert caught.value.exit_code == 6


def test_a_repository_that_cannot_be_reached_is_named_without_its_password_and_with_the_setting_of_a_mirror(
    tmp_path: Path, store: Store
) -> None:
    mirror = '[url "http://user:s3cret@127.0.0.1:9/"]\n\tinsteadOf = https://git.example.org/\n'
    (tmp_path / ".gitconfig").write_text(mirror)
    with pytest.raises(EnvbuildError) as caught:
        locked_source(wish(tmp_path, store, git="https://git.example.org/pkg.git", commit="1" * 40))
    assert caught.value.exit_code == 6
    assert caught.value.message.endswith(
        "stack.pkg.git: the git repository https://git.example.org/pkg.git cannot be reached"
    )
    assert "127.0.0.1" in "\n".join(caught.value.evidence)
    assert "insteadOf" in caught.value.remedy
    assert "s3cret" not in "\n".join((caught.value.message, caught.value.remedy, *caught.value.evidence))


def test_the_mirror_that_gits_own_configuration_names_is_used(tmp_path: Path, store: Store) -> None:
    head = commit(tmp_path / "mirror" / "org" / "pkg", FILES)
    (tmp_path / ".gitconfig").write_text(f'[url "{tmp_path}/mirror/"]\n\tinsteadOf = https://git.example.org/\n')
    locked = locked_source(wish(tmp_path, store, git="https://git.example.org/org/pkg", commit=head))
    assert isinstance(locked, LockedGit)
    assert locked.url == "https://git.example.org/org/pkg"


def test_what_a_killed_git_left_locked_does_not_stop_the_next(tmp_path: Path, store: Store) -> None:
    commit(tmp_path / "repo", FILES)
    head = commit(tmp_path / "repo", {"more.txt": "x"})
    with pytest.raises(ResolveError):
        lock(tmp_path, store, tmp_path / "repo", "1" * 40)
    (repository,) = (store.root / "git").iterdir()
    (repository / "shallow.lock").write_text("")
    assert lock(tmp_path, store, tmp_path / "repo", head).commit == head
    assert (repository / "shallow").read_text().split() == [head]  # the commit came alone, as with a first fetch


def test_a_subdirectory_that_the_commit_does_not_have_is_named(tmp_path: Path, store: Store) -> None:
    head = commit(tmp_path / "repo", FILES)
    with pytest.raises(InvalidDocumentError, match=rf"stack\.pkg\.subdirectory: {head} has no folder src"):
        lock(tmp_path, store, tmp_path / "repo", head, subdirectory="src")


def test_a_fix_is_proven_by_history_or_by_text_in_the_patched_source(tmp_path: Path, store: Store) -> None:
    before = commit(tmp_path / "repo", FILES)
    fix = commit(tmp_path / "repo", {"fixed.txt": "x"})
    head = commit(tmp_path / "repo", {"more.txt": "x"})
    (tmp_path / "a.patch").write_text(PATCH, encoding="utf-8")
    text = {"id": "text", "file": "python/pkg/__init__.py", "contains": "line three"}
    history = {"id": "history", "commit": fix}
    locked = lock(tmp_path, store, tmp_path / "repo", head, fixes=[text, history], patches=["a.patch"])
    assert [(each.id, each.proof) for each in locked.fixes] == [
        ("text", "python/pkg/__init__.py contains 'line three'"),
        ("history", f"{fix} is in the history"),
    ]
    said = r"stack\.pkg\.fixes: the source does not have text: python/pkg/__init__\.py does not contain 'line three'$"
    with pytest.raises(ResolveError, match=said):
        lock(tmp_path, store, tmp_path / "repo", head, fixes=[text])
    with pytest.raises(ResolveError, match=rf"does not have history: {fix} is not in the history of {before}$"):
        lock(tmp_path, store, tmp_path / "repo", before, fixes=[history])


def test_a_lost_archive_is_made_again_and_must_be_the_locked_one(tmp_path: Path, store: Store) -> None:
    head = commit(tmp_path / "repo", FILES)
    (tmp_path / "a.patch").write_text(PATCH, encoding="utf-8")
    wished = wish(tmp_path, store, git=str(tmp_path / "repo"), commit=head, patches=["a.patch"])
    locked = locked_source(wished)
    store.path(locked.archive).unlink()
    assert restore_source(locked, wished) == store.path(locked.archive)
    assert store.has(locked.archive)
    store.path(locked.archive).unlink()
    (tmp_path / "a.patch").write_text(PATCH.replace("three", "3!"), encoding="utf-8")
    with pytest.raises(ResolveError, match="the source is not the locked one"):
        restore_source(locked, wished)
