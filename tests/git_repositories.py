"""Git repositories made by a test: commits with fixed authors and clocks, so that equal files give equal hashes."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FIXED = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


def git(folder: Path, *arguments: str) -> str:
    """Run git in a repository of a test and return what it printed."""
    return subprocess.run(
        ["git", *arguments], cwd=folder, env=os.environ | FIXED, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder: Path, files: Mapping[str, str], *, modules: Mapping[str, tuple[str, str]] | None = None) -> str:
    """Commit files, and submodules as path: (address, commit), in a repository made if need be; return the commit."""
    if not (folder / ".git").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "--quiet", "--initial-branch=main")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8", newline="")
        git(folder, "add", "--", name)
    for path, (address, inner) in (modules or {}).items():
        git(folder, "config", "--file", ".gitmodules", f"submodule.{path}.path", path)
        git(folder, "config", "--file", ".gitmodules", f"submodule.{path}.url", address)
        git(folder, "add", ".gitmodules")
        git(folder, "update-index", "--add", "--cacheinfo", f"160000,{inner},{path}")
    git(folder, "commit", "--quiet", "--message", "x")
    return git(folder, "rev-parse", "HEAD")
