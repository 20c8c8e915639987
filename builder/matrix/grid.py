"""The matrix file: axes over a recipe, what is left out and what is added, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from builder.document import Document
from builder.errors import InvalidDocumentError
from builder.matrix.outcome import Result
from builder.recipe.complaints import complaint_at
from builder.recipe.model import Name, Sentence
from builder.recipe.reading import complaint_lines, read_document
from builder.verify.reported import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from builder.recipe.yaml_text import Complaint, YamlText

MAX_CELLS = 256  # what GitHub takes in one job matrix; a larger grid is better told as several files

Values = dict[str, Value]


def _not_empty(value: dict[str, tuple[Value, ...]]) -> dict[str, tuple[Value, ...]]:
    if not value:
        raise ValueError("a matrix needs at least one axis")
    return value


class Exclusion(Document):
    """Cells that are not run."""

    cells: Annotated[Values, Field(description="the axes and the values that name the cells")]
    reason: Annotated[Sentence, Field(description="why, in a sentence")]


class Inclusion(Document):
    """A cell beside the grid."""

    cell: Annotated[Values, Field(description="the axes and their values; what is left out is the recipe's own")]
    reason: Annotated[Sentence, Field(description="why, in a sentence")]


class Expectation(Document):
    """Cells that do not end well, and are known to."""

    cells: Annotated[Values, Field(description="the axes and the values that name the cells")]
    result: Annotated[Result, Field(description="how they end")]
    reason: Annotated[Sentence, Field(description="why, in a sentence")]


class Matrix(Document):
    """A grid of stacks: one recipe, or several of one pattern, and the values that are tried with it."""

    version: Annotated[Literal[1], Field(description="the version of this format")]
    name: Annotated[Name, Field(description="the name of the matrix")]
    description: Annotated[str, Field(description="what the matrix is for, in a sentence")] = ""
    recipe: Annotated[
        str,
        Field(description="the recipe, from the folder of this file; `{axis}` stands for the value of an axis"),
    ]
    axes: Annotated[
        dict[str, Annotated[tuple[Value, ...], Field(strict=False, min_length=1)]],
        AfterValidator(_not_empty),
        Field(
            description="by name, the values to try: `target`, `cuda`, a package, `overrides.PACKAGE` (a version, or "
            "`absent`), an option or a variable of `serve`, a dotted path into the recipe, or a name that `recipe` "
            "mentions"
        ),
    ]
    exclude: Annotated[tuple[Exclusion, ...], Field(strict=False, description="cells that are not run")] = ()
    include: Annotated[tuple[Inclusion, ...], Field(strict=False, description="cells beside the grid")] = ()
    expect: Annotated[
        tuple[Expectation, ...], Field(strict=False, description="cells that are known not to be good")
    ] = ()
    runners: Annotated[
        dict[Name, Annotated[tuple[str, ...], Field(strict=False, min_length=1)]],
        Field(description="by recipe, by GPU, or `default`: the labels of the runner that a cell needs"),
    ] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixFile:
    """A matrix and where it was read: paths in it start at its folder."""

    path: Path
    matrix: Matrix
    read: YamlText

    def error(self, location: tuple[str | int, ...], message: str) -> InvalidDocumentError:
        """Return the error for a place of the file, with its line and column."""
        return InvalidDocumentError(
            complaint_lines((complaint_at(location, message, self.read),), str(self.path))[0], remedy=""
        )


def read_matrix(path: Path) -> MatrixFile:
    """Read a matrix; raise InvalidDocumentError with every complaint as `file:line:column: path: message`.

    Raise UsageError for a file that cannot be read.
    """
    read, matrix = read_document(path, Matrix, noun="matrix", more=_strangers)
    return MatrixFile(path=path, matrix=matrix, read=read)


def _strangers(read: YamlText, matrix: Matrix | None) -> Iterator[Complaint]:
    """Yield a complaint for every axis or value that a rule names and the axes do not have."""
    if matrix is None:
        return
    excluded = [("exclude", index, rule.cells) for index, rule in enumerate(matrix.exclude)]
    expected = [("expect", index, rule.cells) for index, rule in enumerate(matrix.expect)]
    for key, index, named in (*excluded, *expected):
        for axis, value in named.items():
            yield from _stranger((key, index, "cells", axis), axis, value, matrix, read)
    for index, inclusion in enumerate(matrix.include):
        for axis in inclusion.cell:
            yield from _stranger(("include", index, "cell", axis), axis, None, matrix, read)


def _stranger(
    location: tuple[str | int, ...], axis: str, value: Value | None, matrix: Matrix, read: YamlText
) -> Iterator[Complaint]:
    if axis not in matrix.axes:
        yield complaint_at(location, f"no axis has this name (the axes: {', '.join(matrix.axes)})", read)
        return
    known = [*matrix.axes[axis], *(each.cell[axis] for each in matrix.include if axis in each.cell)]
    if value is not None and value not in known:
        yield complaint_at(location, f"{value!r} is no value of this axis ({', '.join(map(str, known))})", read)


def names(rule: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Say whether a rule's values are all those of a cell."""
    return all(axis in values and values[axis] == value for axis, value in rule.items())
