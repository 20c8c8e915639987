"""YAML text in, plain data out, with the place of every key and value and a complaint for every trap of YAML."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

Location = tuple[str | int, ...]
Place = tuple[int, int]

MAX_CHARACTERS = 500_000
MAX_NODES = 20_000
MAX_DEPTH = 30
MAX_DIGITS = 18

_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PREFIX = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset(_PREFIX + kind for kind in ("str", "int", "float", "bool", "null", "map", "seq", "timestamp"))
_WORDS_READ_AS_BOOLEANS = frozenset({"on", "off", "yes", "no"})
_NOT_TEXT = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ADVICE = (
    ("mapping values are not allowed", "this text holds `: `, which begins a mapping; put quotes around the text"),
    ("expected a single document", "a second document begins here; the file is one document"),
    ("but found another document", "a second document begins here; the file is one document"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Complaint:
    """One thing wrong at one place of a file; lines and columns count from 1."""

    line: int
    column: int
    path: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class YamlText:
    """What a YAML text says: data, where each key or item stands, how each number was written, what is wrong."""

    data: Any
    places: Mapping[Location, Place]
    written: Mapping[Location, str] = field(default_factory=dict)
    complaints: tuple[Complaint, ...] = ()
    faulty: frozenset[Location] = frozenset()


def read_yaml(text: str) -> YamlText:
    """Read one YAML document; never raises, whatever the text is."""
    reader = _Reader()
    try:
        _check_bounds(text)
        node = yaml.compose(text, Loader=_LOADER)
        data = None if node is None else reader.read(node, ())
    except yaml.MarkedYAMLError as error:
        return YamlText(data=None, places={}, complaints=(_broken(error, text),))
    return YamlText(
        data=data,
        places=reader.places,
        written=reader.written,
        complaints=tuple(reader.complaints),
        faulty=frozenset(reader.faulty),
    )


def dotted(location: Location) -> str:
    """Return how people write a location: keys and positions with dots between them."""
    return ".".join(str(part) for part in location)


def _check_bounds(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise _error(f"longer than {MAX_CHARACTERS} characters", text, 0)
    strange = _NOT_TEXT.search(text)
    if strange is not None:
        raise _error(f"the character {strange.group()!r} is not text", text, strange.start())
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH or count > 3 * MAX_NODES:
            raise _too_much(event.start_mark)


def _error(problem: str, text: str, position: int) -> yaml.MarkedYAMLError:
    line = text.count("\n", 0, position)
    column = position - (text.rfind("\n", 0, position) + 1)
    return yaml.MarkedYAMLError(problem=problem, problem_mark=yaml.Mark("", position, line, column, "", 0))


def _too_much(mark: Any) -> yaml.MarkedYAMLError:  # noqa: ANN401 - the mark of either YAML parser
    problem = f"more than {MAX_NODES} values, or nested deeper than {MAX_DEPTH} (anchors that repeat each other?)"
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def _broken(error: yaml.MarkedYAMLError, text: str) -> Complaint:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark is not None else (0, 0)
    problem = str(error.problem or error.context or "not YAML")
    for words, advice in _ADVICE:
        if words in problem or words in str(error.context):
            problem = advice
    lines = text.splitlines()
    if line < len(lines) and "\t" in lines[line][: column + 1] and "character" in problem:
        problem = "a tab; YAML indents with spaces only"
    return Complaint(line=line + 1, column=column + 1, path="", message=problem)


class _Reader:
    """Turns YAML nodes into plain data and remembers where each key and item stands."""

    def __init__(self) -> None:
        self.places: dict[Location, Place] = {}
        self.written: dict[Location, str] = {}
        self.complaints: list[Complaint] = []
        self.faulty: set[Location] = set()
        self._count = 0

    def read(self, node: yaml.Node, location: Location) -> Any:  # noqa: ANN401 - what YAML gives
        self._count += 1
        if self._count > MAX_NODES or len(location) > MAX_DEPTH:
            raise _too_much(node.start_mark)
        self.places.setdefault(location, _place(node))
        if node.tag not in _PLAIN_TAGS:
            self._complain(node, location, f"the tag {node.tag.replace(_PREFIX, '!!')} has no meaning here")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, location)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(child, (*location, index)) for index, child in enumerate(node.value)]
        return self._scalar(node, location)

    def _mapping(self, node: yaml.MappingNode, location: Location) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._complain(key_node, location, "a key must be a word, not a list or a mapping")
                continue
            key = str(key_node.value)
            place = (*location, key)
            if key in data:
                self._complain(key_node, place, f"given twice (first on line {self.places[place][0]})")
                continue
            self.places[place] = _place(key_node)
            if key_node.tag == f"{_PREFIX}merge":
                self._complain(key_node, place, "`<<` does not merge here; write the keys out")
                continue
            data[key] = self.read(value_node, place)
        return data

    def _scalar(self, node: yaml.Node, location: Location) -> Any:  # noqa: ANN401 - what YAML gives
        text = str(node.value)
        if _NOT_TEXT.search(text):
            self._complain(node, location, "holds a character that is not text")
            return ""
        if getattr(node, "style", None) in ("'", '"', "|", ">"):
            return text
        kind = node.tag.removeprefix(_PREFIX)
        if kind == "null":
            self._complain(node, location, "is empty; give a value or leave the key out")
            return None
        if kind == "bool":
            return self._boolean(node, text, location)
        number = _number(kind, text)
        if number is None:
            return text
        self.written[location] = text
        return number

    def _boolean(self, node: yaml.Node, text: str, location: Location) -> bool:
        if text.lower() in _WORDS_READ_AS_BOOLEANS:
            self._complain(node, location, f"YAML reads a bare {text} as a boolean; write true, false or '{text}'")
        self.written[location] = text
        return text.lower() in {"true", "on", "yes"}

    def _complain(self, node: yaml.Node, location: Location, message: str) -> None:
        line, column = _place(node)
        self.faulty.add(location)
        self.complaints.append(Complaint(line=line, column=column, path=dotted(location), message=message))


def _place(node: yaml.Node) -> Place:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _number(kind: str, text: str) -> int | float | None:
    if kind == "int" and text.lstrip("+-").isdigit() and len(text) <= MAX_DIGITS:
        return int(text)
    if kind == "float":
        try:
            value = float(text)
        except ValueError:
            return None
        return value if math.isfinite(value) else None
    return None
