"""What pydantic found wrong, said to a person: one sentence per place, with the nearest right word."""

from __future__ import annotations

import difflib
from datetime import UTC, date, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from builder.recipe.model import FORMS, Recipe
from builder.recipe.targets import find_nearest_target, targets
from builder.recipe.yaml_text import Complaint, YamlText, dotted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic_core import ErrorDetails

    from builder.document import Document
    from builder.recipe.yaml_text import Location

_LIST = "a list is needed: `[a, b]`, or lines that begin with `- `"
_MAPPING = "a mapping is needed: lines of `key: value`"
_FIXED = {
    "tuple_type": _LIST,
    "list_type": _LIST,
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "int_type": "a whole number is needed",
    "int_parsing": "a whole number is needed",
    "int_from_float": "a whole number is needed",
    "bool_type": "true or false is needed",
    "too_short": "needs at least one entry",
}


def complaints_of(
    errors: Iterable[ErrorDetails], read: YamlText, model: type[Document] = Recipe
) -> Iterator[Complaint]:
    """Yield one complaint per place, leaving out places that the YAML reader has complained about already.

    `model` is what the file should have been.
    """
    seen = set(read.faulty)
    for detail in errors:
        location = _place_of(detail, read)
        if any(location[: len(faulty)] == faulty for faulty in seen):
            continue
        if detail["type"] == "too_short" and _value_at(read.data, location):  # its entries are wrong, each in its place
            continue
        seen.add(location)
        yield complaint_at(location, _sentence(detail, location, read, model), read)


def stack_complaints(read: YamlText) -> Iterator[Complaint]:
    """Yield what the schema cannot say: an unknown GPU, a day to come, one package under two spellings."""
    data = read.data if isinstance(read.data, dict) else {}
    target = data.get("target")
    gpu = target.get("gpu") if isinstance(target, dict) else None
    if isinstance(gpu, str) and gpu not in targets():
        yield complaint_at(("target", "gpu"), f"no GPU {gpu!r} is known ({find_nearest_target(gpu)})", read)
    yield from _day_complaints(data.get("as-of"), read)
    for section in ("stack", "overrides"):
        packages = data.get(section)
        spellings: dict[str, str] = {}
        for name in packages if isinstance(packages, dict) else ():
            first = spellings.setdefault(name.replace("_", "-").replace(".", "-"), name)
            if first != name:
                yield complaint_at((section, name), f"is the same package as {first}", read)


def _day_complaints(day: Any, read: YamlText) -> Iterator[Complaint]:  # noqa: ANN401 - what YAML gives
    today = datetime.now(UTC).date()
    try:
        ahead = isinstance(day, str) and date.fromisoformat(day) > today
    except ValueError:
        return
    if ahead:
        advice = f"nobody knows yet what will be published; the latest day to take is today, {today}"
        yield complaint_at(("as-of",), f"{day} is in the future: {advice}", read)


def sentence_about(detail: ErrorDetails, data: Any) -> str:  # noqa: ANN401 - what a recipe says
    """Return `path: what is wrong` of a recipe that stands in no file; `data` is what it says."""
    location: Location = tuple(part for part in detail["loc"] if part != "[key]")
    return f"{dotted(location)}: {_sentence(detail, location, YamlText(data=data, places={}), Recipe)}"


def complaint_at(location: Location, message: str, read: YamlText) -> Complaint:
    """Return a complaint about a place of a file, or about the nearest place above it that the file has."""
    anchor = location
    while anchor not in read.places and anchor:
        anchor = anchor[:-1]
    line, column = read.places.get(anchor, (1, 1))
    return Complaint(line=line, column=column, path=dotted(location), message=message)


def _place_of(detail: ErrorDetails, read: YamlText) -> Location:
    location: Location = tuple(part for part in detail["loc"] if part != "[key]")
    if detail["type"] == "missing":
        return location
    while location and location not in read.places:  # the names of a union's branches are no places
        location = location[:-1]
    return location


def _sentence(detail: ErrorDetails, location: Location, read: YamlText, model: type[Document]) -> str:
    kind = detail["type"]
    value = _value_at(read.data, location)
    if kind == "extra_forbidden":
        return _unknown_key(location, model)
    if kind == "missing":
        return f"missing: {_description(location, model)}"
    if len(location) == 2 and location[0] == "stack" and isinstance(value, int | float):
        kind = "string_type"
    if kind == "string_type":
        return _not_text(value, read.written.get(location))
    if kind == "string_pattern_mismatch":
        wrong = location[-1] if detail["loc"][-1] == "[key]" else value
        return f"{wrong!r} is not {FORMS[str(detail['ctx']['pattern'])]}"
    if kind == "literal_error":
        return _none_of(value, str(detail["ctx"]["expected"]))
    return _FIXED.get(kind) or _plain_message(detail)


def _not_text(value: Any, written: str | None) -> str:  # noqa: ANN401 - what YAML gives
    if isinstance(value, bool):
        return f"YAML reads {written} as a boolean; write '{written}' in quotes"
    if isinstance(value, int | float):
        return f"YAML reads {written} as the number {value}; write '{written}' in quotes"
    return "text is needed" if isinstance(value, str) else "one value is needed, not a list or a mapping"


def _none_of(value: Any, expected: str) -> str:  # noqa: ANN401 - what YAML gives
    options = [word.strip("' ") for word in expected.replace(" or ", ",").split(",")]
    close = difflib.get_close_matches(str(value), options, n=1)
    advice = f" (did you mean {close[0]}?)" if close else ""
    wrong = repr(value) if isinstance(value, str | int | float) else "this"
    return f"{wrong} is not {'one of ' if len(options) > 1 else ''}{', '.join(options)}{advice}"


def _unknown_key(location: Location, model: type[Document]) -> str:
    known = sorted(str(key) for key in _properties(location[:-1], model))
    close = difflib.get_close_matches(str(location[-1]), known, n=1)
    return f"unknown key (did you mean {close[0]}?)" if close else f"unknown key (known here: {', '.join(known)})"


def _plain_message(detail: ErrorDetails) -> str:
    message = str(detail["msg"]).removeprefix("Value error, ").removeprefix("Input ").replace("String", "this text")
    return message[0].lower() + message[1:]


def _description(location: Location, model: type[Document]) -> str:
    return str(_properties(location[:-1], model).get(location[-1], {}).get("description", "a value"))


def _value_at(data: Any, location: Location) -> Any:  # noqa: ANN401 - what YAML gives
    for part in location:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


@cache
def _schema(model: type[Document]) -> dict[str, Any]:
    return model.model_json_schema(by_alias=True)


def _properties(location: Location, model: type[Document]) -> dict[str | int, Any]:
    """Return the keys that the schema knows at a place, each with its schema."""
    schema = _schema(model)
    node = schema
    for part in location:
        node = _follow(_step(_follow(node, schema), part), schema)
    properties: dict[str | int, Any] = _follow(node, schema).get("properties", {})
    return properties


def _step(node: dict[str, Any], part: str | int) -> dict[str, Any]:
    own = node.get("properties", {}).get(part)
    others = [*node.get("patternProperties", {}).values(), node.get("additionalProperties"), node.get("items")]
    return next((dict(found) for found in (own, *others) if isinstance(found, dict)), {})


def _follow(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    for option in node.get("anyOf", ()):
        if "$ref" in option:
            return _follow(option, schema)
    reference = node.get("$ref")
    return dict(schema["$defs"][str(reference).rsplit("/", 1)[-1]]) if reference else node
