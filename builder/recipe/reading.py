"""A YAML file that a person wrote in; its value, or every complaint about the file, out."""

from __future__ import annotations

import difflib
import json
import stat
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from builder.document import Document
from builder.errors import InvalidDocumentError, UsageError
from builder.recipe.complaints import complaints_of
from builder.recipe.yaml_text import Complaint, YamlText, read_yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pydantic_core import ErrorDetails

D = TypeVar("D", bound=Document)


def read_document(
    path: Path,
    model: type[D],
    *,
    noun: str,
    more: Callable[[YamlText, D | None], Iterable[Complaint]],
    example: str | None = None,
) -> tuple[YamlText, D]:
    """Read a file; raise InvalidDocumentError with every complaint as `file:line:column: path: message`.

    `noun` is what people call such a file, `more` finds what the model cannot say. Raise UsageError where there is no
    file that can be read.
    """
    refuse_no_file(path, noun, example)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidDocumentError(f"{path}: byte {error.start} is not UTF-8 text") from None
    except OSError as error:
        raise _unreadable(path, noun, error) from None
    read, value, complaints = parse_document(text, model, noun=noun, more=more)
    if value is None:
        raise InvalidDocumentError("\n".join(complaint_lines(complaints, str(path))), remedy="")
    return read, value


def parse_document(
    text: str, model: type[D], *, noun: str, more: Callable[[YamlText, D | None], Iterable[Complaint]]
) -> tuple[YamlText, D | None, tuple[Complaint, ...]]:
    """Return what the YAML says and its value, or None and all complaints in the file's order; never raises."""
    read = read_yaml(text)
    if not isinstance(read.data, dict):
        return read, None, read.complaints or (_no_mapping(read, noun),)
    value: D | None = None
    wrong: list[ErrorDetails] = []
    try:
        value = model.model_validate_json(json.dumps(read.data))
    except ValidationError as error:
        wrong = error.errors()
    found = [*read.complaints, *more(read, value)]
    named = {complaint.path for complaint in found}
    found.extend(each for each in complaints_of(wrong, read, model) if each.path not in named)
    found.sort(key=lambda complaint: (complaint.line, complaint.column, complaint.path))
    return read, None if found else value, tuple(found)


def complaint_lines(complaints: Iterable[Complaint], source: str) -> list[str]:
    """Return complaints as people and editors read them: `source:line:column: path: message`."""
    return [f"{source}:{c.line}:{c.column}: {c.path + ': ' if c.path else ''}{c.message}" for c in complaints]


def _no_mapping(read: YamlText, noun: str) -> Complaint:
    line, column = read.places.get((), (1, 1))
    what = "the file is empty" if read.data is None else "this is no mapping"
    return Complaint(line=line, column=column, path="", message=f"{what}; a {noun} begins with `version: 1`")


def refuse_no_file(path: Path, noun: str, example: str | None = None) -> None:
    """Raise UsageError for what is not there, and for what would never end, or never begin, when it is read."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UsageError(f"{path}: no such {noun}", remedy=_suggest_file(path, noun, example)) from None
    except OSError as error:
        raise _unreadable(path, noun, error) from None
    kinds = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
    if not stat.S_ISREG(mode):
        what = next((words for is_kind, words in kinds.items() if is_kind(mode)), "a device")
        raise UsageError(f"{path}: this is {what}, not a file", remedy=f"give the path of a {noun}'s file")


def _unreadable(path: Path, noun: str, error: OSError) -> UsageError:
    remedy = f"give the path of a {noun} that you may read"
    return UsageError(f"{path}: cannot be read: {error.strerror}", remedy=remedy)


def _suggest_file(path: Path, noun: str, example: str | None) -> str:
    names = [found.name for found in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    if close:
        return f"did you mean {path.parent / close[0]}?"
    return f"give the path of a {noun}{f', such as {example}' if example else ''}"
