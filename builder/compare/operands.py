"""What a person names -> one side of a comparison: a recipe, the folder of a lock, a git revision, or an image."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from builder.compare.side import image_side, lock_side
from builder.errors import InvalidDocumentError, StaleLockError, UsageError
from builder.lock.lockfile import parse_lock, read_lock
from builder.lock.question import changed_fields, question_of
from builder.process import run
from builder.recipe.reading import complaint_lines
from builder.recipe.source import parse_recipe, read_recipe
from builder.recipe.workspace import workspace_of

if TYPE_CHECKING:
    from builder.compare.side import Side
    from builder.lock.model import Lock
    from builder.recipe.model import Recipe
    from builder.tools import Tools

RECIPE_SUFFIXES = (".yaml", ".yml")
FORMS = "give a recipe, the folder of a lock, REV:recipes/x.yaml, REV:lockfiles/x, or an image of the local engine"
_PORT = re.compile("[0-9]+")  # what stands there in the reference of an image: host:5000/team/image


def read_operand(name: str, tools: Tools, root: Path = Path()) -> Side:
    """Return the side that a name stands for; relative paths start at `root`.

    Raise UsageError if it stands for nothing, StaleLockError for a recipe without a lock, EngineError if an image is
    asked for and the engine cannot be used.
    """
    path = root / name
    if path.is_dir():
        return lock_side(name, folder_lock(path))
    if path.is_file():
        return lock_side(name, recipe_lock(path, tools))
    revision, colon, inside = name.partition(":")
    if name.endswith(RECIPE_SUFFIXES):
        if not colon:
            raise UsageError(f"{name}: no such recipe", remedy=FORMS)
        return lock_side(name, recipe_at(revision, inside, root)[1])
    before, slash, _ = inside.partition("/")
    if slash and not _PORT.fullmatch(before):
        return lock_side(name, folder_lock_at(revision, inside, root))
    facts = tools.engine.image_facts(name)
    if facts is None:
        raise UsageError(f"{name} is no file, no folder and no image of the local engine", remedy=FORMS)
    return image_side(name, facts, tools.engine)


def folder_lock(folder: Path) -> Lock:
    """Return the lock in a folder; raise UsageError if there is none."""
    lock = read_lock(folder, folder.resolve().name)
    if lock is None:
        raise UsageError(f"{folder}: no lock in this folder", remedy=FORMS)
    return lock


def folder_lock_at(revision: str, folder: str, root: Path) -> Lock:
    """Return the lock in a folder as it was at a revision of its repository; raise UsageError if there was none."""
    place, path = f"{revision}:{folder}", (root / folder).absolute()
    _check_revision(revision, path)
    lock = parse_lock(lambda file: _blob(revision, path / file), place=place, name=path.name)
    if lock is None:
        raise UsageError(f"{place}: no lock in this folder at that revision", remedy=FORMS)
    return lock


def recipe_lock(path: Path, tools: Tools) -> Lock:
    """Return the lock of a recipe, with a warning if it is stale; raise StaleLockError if there is none."""
    source = read_recipe(path)
    folder = workspace_of(source).lock
    lock = read_lock(folder, source.recipe.name)
    if lock is None:
        raise StaleLockError(f"{path}: there is no lock in {folder}")
    changed = changed_fields(lock.file.question, question_of(source))
    if changed:
        tools.console.warn(f"{path}: its lock is stale: changed since: {', '.join(changed)}")
    return lock


def recipe_at(revision: str, recipe: str, root: Path) -> tuple[Recipe, Lock]:
    """Return a recipe and its lock as they were at a revision of the repository that the recipe lies in, not we."""
    place, path = f"{revision}:{recipe}", (root / recipe).absolute()
    _check_revision(revision, path)
    text = _blob(revision, path)
    if text is None:
        raise UsageError(f"{place}: there is no such file at that revision", remedy=FORMS)
    parsed, complaints = parse_recipe(text.decode(errors="replace"))
    if parsed is None:
        raise InvalidDocumentError("\n".join(complaint_lines(complaints, place)), remedy="")
    folder = _project_of(path) / "lockfiles" / parsed.name
    lock = parse_lock(lambda file: _blob(revision, folder / file), place=f"{revision}:{folder}", name=parsed.name)
    if lock is None:
        raise StaleLockError(f"{place}: there was no lock in {folder}", remedy="name a revision that has one")
    return parsed, lock


def recipes_at(revision: str, root: Path) -> tuple[str, ...]:
    """Return the paths of all recipes that a project had at a revision; raise UsageError for one that git knows not."""
    _check_revision(revision, root.absolute() / "recipes")
    answer = run(["git", "ls-tree", "-r", "--name-only", "-z", revision, "./recipes"], cwd=root)
    return tuple(name for name in answer.stdout.decode().split("\0") if name.endswith(RECIPE_SUFFIXES))


def _project_of(path: Path) -> Path:
    """Return the folder above the nearest `recipes`, as `workspace_of` does for files on disk."""
    return next((folder.parent for folder in path.parents if folder.name == "recipes"), path.parent)


def _beside(path: Path) -> Path:
    """Return the folder whose repository holds a path: the nearest that is still there, if the path's own is gone."""
    return next(folder for folder in path.parents if folder.is_dir())


def _check_revision(revision: str, path: Path) -> None:
    answer = run(["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"], cwd=_beside(path))
    if answer.code != 0:
        said = answer.text.strip() or f"git knows no commit {revision!r} here"
        raise UsageError(f"{revision}: no revision of this folder's repository", remedy=FORMS, evidence=(said,))


def _blob(revision: str, path: Path) -> bytes | None:
    folder = _beside(path)
    answer = run(["git", "show", f"{revision}:./{path.relative_to(folder).as_posix()}"], cwd=folder)
    return answer.stdout if answer.code == 0 else None
