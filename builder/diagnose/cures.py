"""A verdict that is good after a bad one: what cured it is offered as a finding, and kept where the user wants it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from builder.diagnose.diagnosing import diagnose
from builder.diagnose.offering import offered_finding
from builder.diagnose.stage import FINDINGS, deciding_check
from builder.document import key_of, write_atomic
from builder.recipe.model import Recipe
from builder.recipe.workspace import workspace_of
from builder.verify.reported import Edit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from builder.recipe.source import RecipeFile
    from builder.store import Store
    from builder.verify.verdict import Verdict

FAILURE = "failure"
OFFER = "offer"
_CURING = ("serve", "stack", "base", "cuda", "host")
_PATH = re.compile(r"[a-z]+(\.[A-Za-z0-9_.+-]+)*")


def note_verdict(source: RecipeFile, verdict: Verdict, store: Store) -> None:
    """Remember the failure of a bad verdict; where a good one follows it, make the finding that is offered."""
    key = _key(source)
    if verdict.result == "bad":
        check = deciding_check(verdict)
        record = {"recipe": source.recipe.to_plain(), "log": check.log if check else None}
        store.keep_result(FAILURE, key, {**record, "lock_digest": verdict.lock_digest})
        store.forget_result(OFFER, key)
    elif verdict.result == "good" and (failure := store.result(FAILURE, key)) is not None:
        store.forget_result(FAILURE, key)
        text = _cure(failure, source, store)
        if text is not None:
            store.keep_result(OFFER, key, {"text": text, "lock_digest": verdict.lock_digest})


def offer_of(source: RecipeFile, store: Store) -> str | None:
    """Return the finding that is offered for a recipe and was not saved yet."""
    record = store.result(OFFER, _key(source))
    return None if record is None else str(record["text"])


def save_offer(source: RecipeFile, store: Store) -> Path | None:
    """Write the finding that is offered to the project's findings/; None if there is none."""
    text = offer_of(source, store)
    if text is None:
        return None
    store.forget_result(OFFER, _key(source))
    return save_finding(text, workspace_of(source).root)


def save_finding(text: str, root: Path) -> Path:
    """Write a finding to the findings of a project, under its own name."""
    name = text.partition("name: ")[2].partition("\n")[0]
    path = root / FINDINGS / f"{name}.yaml"
    write_atomic(path, text.encode())
    return path


def finding_of(log: str | None, recipe: Recipe, edits: Iterable[Edit], store: Store) -> str | None:
    """Return the finding that edits cured a failure, by its log in the store; None if it cannot be recognised."""
    cure = tuple(edits)
    if not cure or log is None or not store.has(log):
        return None
    with store.path(log).open("rb") as stream:
        bad = diagnose(stream, recipe=recipe)
    if not bad.causes:
        return None
    mark = key_of([log, [edit.to_plain() for edit in cure]])[:6]
    name = re.sub(r"[^a-z0-9]+", "-", f"{recipe.name[:24]}-{bad.causes[0].kind[:24]}-{mark}").strip("-")
    try:
        return offered_finding(bad, cure, name=name).decode()
    except ValueError:
        return None


def edits_between(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> Iterator[Edit]:
    """Yield what a recipe says now and did not say before, leaf by leaf; what it says no more is no edit."""
    for name, value in new.items():
        here = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            before = old.get(name)
            yield from edits_between(before if isinstance(before, dict) else {}, value, here)
        elif value != old.get(name) and _PATH.fullmatch(here):
            yield Edit(path=here, value=tuple(map(str, value)) if isinstance(value, list) else value)


def _cure(failure: Mapping[str, Any], source: RecipeFile, store: Store) -> str | None:
    old, new = failure["recipe"], source.recipe.to_plain()
    if old.get("smoke") != new.get("smoke"):
        return None  # another proof: nothing was cured
    before, after = ({name: plain.get(name, {}) for name in _CURING if name in plain} for plain in (old, new))
    recipe = Recipe.model_validate_json(json.dumps(old))
    return finding_of(failure["log"], recipe, edits_between(before, after), store)


def _key(source: RecipeFile) -> str:
    return key_of(str(workspace_of(source).lock))
