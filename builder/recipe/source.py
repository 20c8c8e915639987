"""YAML with line numbers: a recipe file in, a Recipe or every complaint about it out."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import yaml
from pydantic import ValidationError

from builder.errors import InvalidDocumentError
from builder.recipe.model import Recipe

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic_core import ErrorDetails

Location = tuple[str | int, ...]
MAX_NODES = 20_000
_BOOLEAN_TRAPS = {"on", "off", "yes", "no", "y", "n"}


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeFile:
    """A recipe and where it was read: relative paths in it start at `folder`."""

    path: Path
    recipe: Recipe

    @property
    def folder(self) -> Path:
        """The folder that relative paths of the recipe start from."""
        return self.path.parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Complaint:
    """One thing wrong at one place of a file; lines and columns count from 1."""

    line: int
    column: int
    path: str
    message: str


def read_recipe(path: Path) -> RecipeFile:
    """Read a recipe; raise InvalidDocumentError with every complaint as `file:line:column: path: message`."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidDocumentError(f"{path}: no such recipe", remedy=_suggest_file(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidDocumentError(f"{path}: cannot be read: {error}") from None
    recipe, complaints = parse_recipe(text)
    if recipe is None:
        lines = [f"{path}:{c.line}:{c.column}: {c.path + ': ' if c.path else ''}{c.message}" for c in complaints]
        raise InvalidDocumentError("\n".join(lines), remedy="")
    return RecipeFile(path=path, recipe=recipe)


def parse_recipe(text: str) -> tuple[Recipe | None, tuple[Complaint, ...]]:
    """Return the recipe in `text`, or None and all complaints, in file order."""
    reader = _Reader()
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = reader.read(node, ()) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        return None, (Complaint(line=place[0], column=place[1], path="", message=str(error.problem)),)
    except yaml.YAMLError as error:
        return None, (Complaint(line=1, column=1, path="", message=str(error).splitlines()[0]),)
    if not isinstance(data, dict):
        return None, (
            Complaint(line=1, column=1, path="", message="a recipe is a mapping that starts with `version: 1`"),
        )
    if reader.complaints:
        return None, tuple(reader.complaints)
    try:
        return Recipe.model_validate_json(json.dumps(data)), ()
    except ValidationError as error:
        found = [_complaint(detail, data, reader.places) for detail in error.errors()]
        return None, tuple(sorted(found, key=lambda c: (c.line, c.column, c.path)))


class _Reader:
    """Turns YAML nodes into plain data and remembers where each value and key stands."""

    def __init__(self) -> None:
        self.places: dict[Location, tuple[int, int]] = {}
        self.complaints: list[Complaint] = []
        self._count = 0

    def read(self, node: yaml.Node, location: Location) -> Any:  # noqa: ANN401 - what YAML gives
        self._count += 1
        if self._count > MAX_NODES:
            raise yaml.MarkedYAMLError(
                problem=f"more than {MAX_NODES} values: anchors that repeat each other?", problem_mark=node.start_mark
            )
        self.places.setdefault(location, (node.start_mark.line + 1, node.start_mark.column + 1))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, location)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(child, (*location, index)) for index, child in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, location)
        raise TypeError(f"no such YAML node: {node!r}")

    def _mapping(self, node: yaml.MappingNode, location: Location) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            place = (*location, key)
            mark = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if key in data:
                first = self.places[place]
                self._complain(mark, place, f"given twice (first on line {first[0]})")
                continue
            self.places[place] = mark
            data[key] = self.read(value_node, place)
        return data

    def _scalar(self, node: yaml.ScalarNode, location: Location) -> Any:  # noqa: ANN401 - what YAML gives
        text = str(node.value)
        mark = (node.start_mark.line + 1, node.start_mark.column + 1)
        if node.style in ("'", '"', "|", ">"):
            return text
        kind = node.tag.rsplit(":", 1)[-1]
        if kind == "bool":
            if text.lower() in _BOOLEAN_TRAPS:
                self._complain(
                    mark, location, f"YAML reads a bare `{text}` as a boolean; write true, false or '{text}'"
                )
            return text.lower() in {"true", "on", "yes", "y"}
        if kind == "int" and text.lstrip("+-").isdigit():
            return int(text)
        if kind == "float":
            return _Float(text)
        if kind == "null":
            return None
        return text

    def _complain(self, mark: tuple[int, int], location: Location, message: str) -> None:
        self.complaints.append(Complaint(line=mark[0], column=mark[1], path=_dotted(location), message=message))


class _Float(float):
    """A float that remembers how it was written, for the advice to quote it."""

    def __new__(cls, text: str) -> Self:
        value = super().__new__(cls, text.replace("_", ""))
        value.text = text
        return value

    text: str


def _complaint(detail: ErrorDetails, data: dict[str, Any], places: dict[Location, tuple[int, int]]) -> Complaint:
    location: Location = tuple(part for part in detail["loc"] if part != "[key]")
    anchor = location
    while anchor and anchor not in places:
        anchor = anchor[:-1]
    line, column = places.get(anchor, (1, 1))
    return Complaint(line=line, column=column, path=_dotted(location), message=_message(detail, location, data))


def _message(detail: ErrorDetails, location: Location, data: dict[str, Any]) -> str:
    kind = detail["type"]
    value = _lookup(data, location)
    if kind == "extra_forbidden":
        close = difflib.get_close_matches(str(location[-1]), _known_keys(location[:-1]), n=1)
        return "unknown key" + (f" (did you mean {close[0]}?)" if close else "")
    if kind == "missing":
        return "missing"
    if kind == "string_type" and isinstance(value, int | float) and not isinstance(value, bool):
        written = value.text if isinstance(value, _Float) else str(value)
        return f"YAML reads {written} as a number; versions are text: write '{written}'"
    if kind == "string_pattern_mismatch":
        return f"{value!r} is not of the expected form {detail.get('ctx', {}).get('pattern')}"
    if kind == "literal_error":
        expected = str(detail.get("ctx", {}).get("expected"))
        options = [word.strip("' ") for word in expected.replace(" or ", ",").split(",")]
        close = difflib.get_close_matches(str(value), options, n=1)
        return f"{value!r} is none of {expected}" + (f" (did you mean {close[0]}?)" if close else "")
    message = str(detail["msg"]).removeprefix("Value error, ")
    return message[0].lower() + message[1:] if message else kind


def _lookup(data: Any, location: Location) -> Any:  # noqa: ANN401 - what YAML gives
    for part in location:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _known_keys(location: Location) -> list[str]:
    """Return the keys that the schema allows at a place, by walking the JSON schema."""
    schema = Recipe.model_json_schema(by_alias=True)
    node: dict[str, Any] = schema
    for part in location:
        node = _resolve(node, schema)
        properties = node.get("properties", {})
        if part in properties:
            node = properties[part]
        elif isinstance(node.get("additionalProperties"), dict):
            node = node["additionalProperties"]
        else:
            node = node.get("items", {})
    return list(_resolve(node, schema).get("properties", {}))


def _resolve(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    for option in node.get("anyOf", ()):
        if "$ref" in option:
            node = option
    reference = node.get("$ref")
    return schema["$defs"][str(reference).rsplit("/", 1)[-1]] if reference else node


def _dotted(location: Location) -> str:
    return ".".join(str(part) for part in location)


def _suggest_file(path: Path) -> str:
    folder = path.parent if path.parent.is_dir() else None
    names = [p.name for p in folder.glob("*.yaml")] if folder else []
    close = difflib.get_close_matches(path.name, names, n=1)
    return (
        f"did you mean {path.parent / close[0]}?"
        if close
        else "give the path of a recipe, such as recipes/quickstart.yaml"
    )
