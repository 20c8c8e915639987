"""The recipe's JSON Schema for editors, and its reference page for people: both made from the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.document import pretty_json
from builder.recipe.generated import GeneratedFile
from builder.recipe.model import FORMS, Recipe
from builder.recipe.targets import targets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.recipe.targets import GpuTarget

SCHEMA_PATH = "schemas/recipe.schema.json"
REFERENCE_PATH = "docs/reference/recipe.md"
_MIB = 1 << 20
_INTRODUCTION = """\
# The recipe

<!-- Made from builder/recipe/model.py and builder/recipe/targets.yaml by `envbuild schema --write`; do not edit. -->

A recipe is one YAML file. Versions are text, so they stand in quotes; an unknown key is an error; every error names its
line and column. Editors complete and check a recipe that begins with
`# yaml-language-server: $schema=../schemas/recipe.schema.json`.
"""


def recipe_schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe: with the short form of a package and the known GPUs."""
    schema: dict[str, Any] = Recipe.model_json_schema(by_alias=True)
    package = {"$ref": "#/$defs/Package"}
    short = next(o for o in schema["$defs"]["Package"]["properties"]["version"]["anyOf"] if o["type"] == "string")
    patterns = schema["properties"]["stack"]["patternProperties"]
    for pattern in patterns:
        patterns[pattern] = {"anyOf": [short, package]}
    schema["$defs"]["Target"]["properties"]["gpu"]["enum"] = list(targets())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **tidy(schema)}


def schema_text() -> str:
    """Return the text of the committed schema file."""
    return pretty_json(recipe_schema()).decode()


def recipe_reference() -> str:
    """Return the reference page: every key with its meaning, form and default, then the table of GPUs."""
    schema = Recipe.model_json_schema(by_alias=True)
    parts = [_INTRODUCTION, "\n".join(_section("recipe", schema))]
    parts += ["\n".join(_section(name, definition)) for name, definition in sorted(schema["$defs"].items())]
    return "\n".join([*parts, "\n".join(_target_table())]) + "\n"


def recipe_files() -> tuple[GeneratedFile, ...]:
    """Return the files that are made from the recipe's model."""
    return (
        GeneratedFile(path=SCHEMA_PATH, text=schema_text()),
        GeneratedFile(path=REFERENCE_PATH, text=recipe_reference()),
    )


def tidy(node: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a schema without what a person who writes by it has no use for: titles, nulls, defaults that are nulls."""
    if isinstance(node, list):
        return [tidy(item) for item in node if item != {"type": "null"}]
    if not isinstance(node, dict):
        return node
    kept = {key: tidy(value) for key, value in node.items() if not _is_noise(key, value)}
    options = kept.get("anyOf", ())
    if len(options) == 1:
        return {**{key: value for key, value in kept.items() if key != "anyOf"}, **options[0]}
    return kept


def _is_noise(key: str, value: Any) -> bool:  # noqa: ANN401 - any JSON value
    return (key == "title" and isinstance(value, str)) or (key == "default" and value is None)


def _section(name: str, node: dict[str, Any]) -> Iterator[str]:
    yield f"## {name[0].lower() + name[1:]}\n"
    yield f"{node['description']}\n"
    yield "| key | meaning | form | default |"
    yield "| --- | --- | --- | --- |"
    required = node.get("required", ())
    for key, value in node["properties"].items():
        default = "required" if key in required else _default(value.get("default"))
        yield f"| `{key}` | {value.get('description', '')} | {_form(value)} | {default} |"
    yield ""


def _default(value: Any) -> str:  # noqa: ANN401 - any JSON value
    if value in (None, [], {}, ""):
        return ""
    return f"`{', '.join(value)}`" if isinstance(value, list) else "" if isinstance(value, dict) else f"`{value}`"


def _form(node: dict[str, Any]) -> str:
    if "$ref" in node:
        name = str(node["$ref"]).rsplit("/", 1)[-1]
        return f"[{name.lower()}](#{name.lower()})"
    if "anyOf" in node:
        return ", ".join(_form(option) for option in node["anyOf"] if option.get("type") != "null")
    if "enum" in node or "const" in node:
        return ", ".join(f"`{value}`" for value in node.get("enum", [node.get("const")]))
    if node.get("type") == "array":
        return f"list: {_form(node['items'])}"
    if node.get("type") == "object":
        return f"mapping: {_form(_values(node))}"
    return FORMS.get(str(node.get("pattern")), str(node.get("type")))


def _values(node: dict[str, Any]) -> dict[str, Any]:
    patterns: dict[str, dict[str, Any]] = node.get("patternProperties", {})
    return next(iter(patterns.values()), None) or dict(node["additionalProperties"])


def _target_table() -> Iterator[str]:
    yield "## GPUs\n"
    yield "What `target.gpu` may be. Shared memory is in bytes: per block (opt-in) / per SM. Sources: `targets.yaml`.\n"
    yield "| id | product name of the driver | capability | shared memory | SMs | memory | first nvcc | first driver |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for target in targets().values():
        yield _target_row(target)


def _target_row(target: GpuTarget) -> str:
    memory = f"{target.memory // _MIB} MiB" if target.memory is not None else "the host's"
    shared = f"{target.shared_memory_per_block} / {target.shared_memory_per_sm}"
    return (
        f"| `{target.id}` | {target.product} | {target.capability} | {shared} | {target.sms} | {memory} "
        f"| {target.first_nvcc} | {target.first_driver} |"
    )
