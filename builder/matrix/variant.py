"""A recipe with some of its values changed: what an axis names, what the recipe says there, and the edited recipe."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name
from pydantic import ValidationError

from builder.errors import InvalidDocumentError, UsageError
from builder.matrix.strategy import Factor
from builder.recipe.complaints import sentence_about
from builder.recipe.model import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builder.matrix.strategy import Choice
    from builder.recipe.source import RecipeFile

_ROOTS = ("serve", "stack", "base", "target", "host", "cuda", "python", "as-of", "overrides")
_OVERRIDES = "overrides."
_FIELDS = (".version", ".absent", ".reason")


def edited(source: RecipeFile, edits: Mapping[str, Choice]) -> RecipeFile:
    """Return a recipe with new values at dotted paths; raise InvalidDocumentError if that is no recipe any more.

    The value of `overrides.NAME` is what the override answers: a version, or `absent`.
    """
    plain = copy.deepcopy(source.recipe.to_plain())
    for path, value in edits.items():
        if path.startswith(_OVERRIDES) and path.endswith(_FIELDS):
            place, package = f"{source.path}: {path}", path.rpartition(".")[0]
            raise InvalidDocumentError(f"{place}: {package} has one value, a version or `absent`", remedy="")
        _put(plain, path, _written(path, value))
    try:
        recipe = Recipe.model_validate_json(json.dumps(plain))
    except ValidationError as error:
        sentence = sentence_about(error.errors()[0], plain)
        raise InvalidDocumentError(f"{source.path}: {sentence}", remedy="") from None
    return replace(source, recipe=recipe)


def own_value(recipe: Recipe, path: str) -> Choice:
    """Return what a recipe says at a dotted path, None where it says nothing."""
    if path.startswith(_OVERRIDES):
        override = recipe.overrides.get(path.removeprefix(_OVERRIDES))
        return override.answer if override else None
    node: Any = recipe.to_plain()
    for part in _parts(path):
        node = node.get(part) if isinstance(node, dict) else None
    return tuple(node) if isinstance(node, list) else node if isinstance(node, str | int | float | bool) else None


def axes_of(source: RecipeFile, texts: Sequence[str]) -> tuple[Factor, ...]:
    """Return the factors that `NAME=VALUE,VALUE` texts ask for, the recipe's own value first.

    A name is a dotted path into the recipe, `overrides.` and a package, a package of its stack, a variable of
    `serve.env` (capitals) or an option of `serve.args`. Raise UsageError for a text of another form.
    """
    factors = []
    for text in texts:
        name, equals, listed = text.partition("=")
        values = [value.strip() for value in listed.split(",")]
        if not (name and equals) or "" in values:
            raise UsageError(
                f"--axis {text}: not of the form NAME=VALUE,VALUE", remedy="such as kv-cache-dtype=bf16,fp8"
            )
        path = axis_path(source.recipe, name)
        choices = [_typed(path, value) for value in values]
        own = own_value(source.recipe, path)
        others = tuple(dict.fromkeys(choice for choice in choices if choice != own))
        if others:
            factors.append(Factor(path=path, values=(own, *others)))
    return tuple(factors)


def axis_path(recipe: Recipe, name: str) -> str:
    """Return the dotted path that an axis means; raise UsageError if the recipe has no such place."""
    if name.startswith(_OVERRIDES):
        overruled = name.removeprefix(_OVERRIDES)
        return f"{_OVERRIDES}{_own_name(recipe.overrides, overruled) or overruled}"
    if name.partition(".")[0] in _ROOTS:
        return name
    if (package := _own_name(recipe.stack, name)) is not None:
        return f"stack.{package}.{'commit' if recipe.stack[package].git else 'version'}"
    root = name.partition(".")[0]
    if root in {field.alias or key for key, field in Recipe.model_fields.items()}:
        raise UsageError(
            f"--axis {name}: no axis changes `{root}`", remedy=f"an axis is below one of {', '.join(_ROOTS)}"
        )
    if recipe.serve is None:
        raise UsageError(
            f"--axis {name}: the recipe has no package {name!r} and no `serve`",
            remedy="name a package of the stack, or a dotted path such as stack.torch.version",
        )
    return f"serve.env.{name}" if name.isupper() else f"serve.args.{name}"


def _own_name(packages: Iterable[str], name: str) -> str | None:
    """Return how a recipe itself writes the name of a package."""
    return next((own for own in packages if canonicalize_name(own) == canonicalize_name(name)), None)


def _typed(path: str, text: str) -> Choice:
    """Return the value of an option as YAML would read it; everything else in a recipe is text."""
    if not path.startswith("serve.args."):
        return text
    if text in {"true", "false"}:
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _written(path: str, value: Choice) -> Any:  # noqa: ANN401 - a JSON value
    """Return what a recipe holds where an edit has this value."""
    if path.startswith(_OVERRIDES):
        answer = {"absent": True} if value == "absent" else {"version": value}
        return {**answer, "reason": "tried in the place of what the recipe says"}
    return list(value) if isinstance(value, tuple) else value


def _put(plain: dict[str, Any], path: str, value: Any) -> None:  # noqa: ANN401 - a JSON value
    *parents, last = _parts(path)
    node = plain
    for part in parents:
        if not isinstance(node.get(part), dict):
            node[part] = {}
        node = node[part]
    node[last] = value


def _parts(path: str) -> list[str]:
    """Return the keys of a path; names of options, variables and packages may have dots."""
    if path.startswith("serve."):
        return path.split(".", 2)
    if path.startswith(_OVERRIDES):
        return path.split(".", 1)
    if path.startswith("stack.") and path.rpartition(".")[2] in {"version", "commit"}:
        return ["stack", *path.removeprefix("stack.").rsplit(".", 1)]
    return path.split(".")
