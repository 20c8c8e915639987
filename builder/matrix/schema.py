"""The JSON Schema of a matrix file, for editors: made from its model."""

from __future__ import annotations

from builder.document import pretty_json
from builder.matrix.grid import Matrix
from builder.recipe.generated import GeneratedFile
from builder.recipe.schema import tidy

SCHEMA_PATH = "schemas/matrix.schema.json"


def matrix_files() -> tuple[GeneratedFile, ...]:
    """Return the files that are made from the model of a matrix."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **tidy(Matrix.model_json_schema(by_alias=True)),
    }
    return (GeneratedFile(path=SCHEMA_PATH, text=pretty_json(schema).decode()),)
