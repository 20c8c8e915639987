"""Patch files on a source tree: every hunk must fit exactly, else the error names patch, file and hunk."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder import process
from builder.errors import ResolveError
from builder.lock.git import WITHOUT
from builder.lock.patchfiles import read_patch
from builder.lock.tree import read_tree, write_tree

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builder.lock.model import LockedPatch
    from builder.lock.tree import SourceFile

FAILED = re.compile(r"^error: patch failed: (?P<file>.*):(?P<line>\d+)$", re.MULTILINE)
HUNK = re.compile(r"^@@ -(?P<line>\d+)\S* \+\S+ @@", re.MULTILINE)
FILE = re.compile(r"^(?=--- )", re.MULTILINE)


def patched_tree(
    tree: dict[str, SourceFile], patches: Sequence[LockedPatch], folder: Path, scratch: Path, place: str
) -> dict[str, SourceFile]:
    """Return a source tree with the patch files of the recipe's `folder` applied in order; no context line may differ.

    `scratch` is an empty folder. Raise ResolveError if a patch does not fit.
    """
    if not patches:
        return tree
    write_tree(tree, scratch)
    for patch in patches:
        _apply(patch.file, read_patch(folder, patch.file, place), scratch, place)
    return read_tree(scratch, place)


def _apply(name: str, data: bytes, tree: Path, place: str) -> None:
    ended = process.run(
        ("git", "apply", "--whitespace=nowarn", "-p1", "-"),
        cwd=tree,
        stdin=data,
        # The user's configuration could ask for fuzzy white space; a repository above the folder would hide files.
        environment={
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent),
            "LC_ALL": "C",
        },
        without=[*WITHOUT, "GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS"],
    )
    if ended.code != 0:
        raise ResolveError(
            f"{place}: {name} does not apply: {_cause(ended.text, data.decode(errors='replace'))}",
            remedy="make the patch anew for exactly this source",
            evidence=tuple(ended.text.strip().splitlines()),
        )


def _cause(said: str, patch: str) -> str:
    """Return which hunk of which file failed, from git's answer and the patch itself; else git's first reason."""
    failed = FAILED.search(said)
    if failed is None:
        return next((line.removeprefix("error: ") for line in said.splitlines() if line), "git gave no reason")
    for part in FILE.split(patch):
        head = part.splitlines()[1] if part.count("\n") > 1 else ""
        if head.removeprefix("+++ ").split("\t")[0].partition("/")[2] != failed["file"]:
            continue
        for number, hunk in enumerate(HUNK.finditer(part), start=1):
            if hunk["line"] == failed["line"]:
                return f"hunk {number} ({hunk[0]}) of {failed['file']} does not fit"
    return f"the hunk at line {failed['line']} of {failed['file']} does not fit"
