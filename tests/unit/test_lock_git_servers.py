"""Git sources from servers: over HTTPS that a CA bundle of the user's vouches for, with a login, and over SSH."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.errors import ResolveError
from builder.lock.model import LockedGit
from builder.lock.sources import locked_source
from builder.lock.wish import Wish
from builder.recipe.model import Recipe
from builder.recipe.source import RecipeFile
from builder.settings import settings_from
from builder.store import Store
from tests.git_repositories import commit, git
from tests.git_server import PASSWORD, USER, GitServer, serve_git

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PYPROJECT = '[project]\nname = "pkg"\nversion = "1"\ndependencies = ["numpy"]\n'
# What the `ssh` of a machine without a server does: it runs here what would run there, and notes whom it was to ask.
SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do
  [ "$1" = -o ] && shift
  shift
done
echo "$1" >> "$HOME/asked"
shift
exec sh -c "$*"
"""


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (
        "XDG_CONFIG_HOME",
        "GIT_CONFIG_GLOBAL",
        "GIT_SSL_CAINFO",
        "SSL_CERT_FILE",
        "HTTPS_PROXY",
        "https_proxy",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def repositories(tmp_path: Path) -> Path:
    """A folder with `pkg` and, as its submodule, `inner`."""
    root = tmp_path / "repositories"
    inner = commit(root / "inner", {"kernel.cu": "// inner\n"})
    modules = {"third/inner": ("../../inner/.git", inner)}
    commit(root / "pkg", {"pyproject.toml": PYPROJECT, "a.py": "A = 1\n"}, modules=modules)
    for name in ("pkg", "inner"):
        git(root / name, "config", "uploadpack.allowAnySHA1InWant", "true")
    return root


@pytest.fixture
def server(repositories: Path, tmp_path: Path) -> Iterator[GitServer]:
    with serve_git(repositories, tmp_path / "tls") as served:
        yield served


def wish(tmp_path: Path, url: str, head: str, *, ca_bundle: Path | None = None) -> Wish:
    plain = {
        "version": 1,
        "name": "x",
        "target": {"gpu": "h200"},
        "base": {"debian": "trixie"},
        "python": "3.13",
        "stack": {"pkg": {"build": {}, "git": url, "commit": head}},
    }
    recipe = Recipe.from_json(json.dumps(plain), source="test")
    settings = replace(settings_from({}), ca_bundle=ca_bundle)
    store = Store(tmp_path / "store")
    return Wish(
        name="pkg",
        package=recipe.stack["pkg"],
        source=RecipeFile(path=tmp_path / "r.yaml", recipe=recipe),
        store=store,
        settings=settings,
    )


def head_of(repositories: Path, name: str = "pkg") -> str:
    return git(repositories / name, "rev-parse", "HEAD")


def test_a_commit_comes_over_https_by_the_users_ca_bundle_with_its_submodules(
    server: GitServer, repositories: Path, tmp_path: Path
) -> None:
    head = head_of(repositories)
    found = locked_source(wish(tmp_path, f"{server.url}/pkg/.git", head, ca_bundle=server.authority))
    assert isinstance(found, LockedGit)
    assert (found.commit, found.tree) == (head, git(repositories / "pkg", "rev-parse", "HEAD^{tree}"))
    (module,) = found.submodules
    assert (module.path, module.commit) == ("third/inner", head_of(repositories, "inner"))
    assert module.url == f"{server.url}/inner/.git"
    local = locked_source(wish(tmp_path / "local", str(repositories / "pkg" / ".git"), head))
    assert found.archive == local.archive
    assert {path.rpartition("/")[0] for path in server.asked} >= {"/pkg/.git/info", "/inner/.git/info"}


def test_a_server_that_nothing_vouches_for_is_not_believed(
    server: GitServer, repositories: Path, tmp_path: Path
) -> None:
    with pytest.raises(ResolveError, match="cannot be reached") as raised:
        locked_source(wish(tmp_path, f"{server.url}/pkg/.git", head_of(repositories)))
    assert "certificate" in " ".join(raised.value.evidence)
    assert server.asked == []


def test_a_commit_that_a_server_does_not_have_is_named(server: GitServer, tmp_path: Path) -> None:
    with pytest.raises(ResolveError, match=f"/pkg/.git has no commit {'1' * 40}"):
        locked_source(wish(tmp_path, f"{server.url}/pkg/.git", "1" * 40, ca_bundle=server.authority))


def test_a_login_comes_from_gits_own_credentials_and_is_never_asked_for(repositories: Path, tmp_path: Path) -> None:
    head = head_of(repositories)
    with serve_git(repositories, tmp_path / "tls", login=True) as server:
        wished = wish(tmp_path, f"{server.url}/pkg/.git", head, ca_bundle=server.authority)
        with pytest.raises(ResolveError, match="cannot be reached") as raised:
            locked_source(wished)
        assert "could not read Username" in " ".join(raised.value.evidence)
        (tmp_path / ".gitconfig").write_text(f"[credential]\n\thelper = store --file {tmp_path}/credentials\n")
        (tmp_path / "credentials").write_text(f"{server.url.replace('://', f'://{USER}:{PASSWORD}@')}\n")
        found = locked_source(wished)
    assert isinstance(found, LockedGit)
    assert found.commit == head
    assert PASSWORD not in found.model_dump_json()


def test_a_commit_comes_over_ssh_by_the_users_own_ssh(
    repositories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(tmp_path / "ssh"))
    head = head_of(repositories)
    found = locked_source(wish(tmp_path, f"ssh://git@build.example{repositories}/pkg/.git", head))
    assert isinstance(found, LockedGit)
    assert found.commit == head
    assert [module.url for module in found.submodules] == [f"ssh://git@build.example{repositories}/inner/.git"]
    assert {*(tmp_path / "asked").read_text().split()} == {"git@build.example"}
