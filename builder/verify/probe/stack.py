"""Which release of a serving engine is installed, what that release must be told, and which model code it has."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import re
from pathlib import Path
from typing import Any

MODEL_CLASS = "GlmMoeDsaForCausalLM"
MODELS = {"sglang": "srt/models", "vllm": "model_executor/models"}


def own_options(package: str, by_version: list[dict[str, Any]]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and variables of those entries that are for the installed release."""
    arguments: list[str] = []
    environment: dict[str, str] = {}
    release = _release(installed(package))
    for entry in by_version:
        since, before = _release(entry.get("since", "0")), _release(entry.get("before", "9999"))
        if release and since <= release < before:
            arguments += entry["arguments"]
            environment |= entry["environment"]
    return arguments, environment


def installed(package: str) -> str:
    """Return the version of an installed package, empty if there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def model_code(package: str) -> dict[str, str]:
    """Return the module of the engine that defines GLM-5's model class, and that file's sha256; empty if there is none.

    The package is not imported: the file is looked for.
    """
    spec = importlib.util.find_spec(package)
    folders = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    for folder in folders:
        for file in sorted((folder / MODELS[package]).glob("*.py")):
            text = file.read_bytes()
            if f"class {MODEL_CLASS}(".encode() in text:
                name = f"{package}.{MODELS[package].replace('/', '.')}.{file.stem}.{MODEL_CLASS}"
                return {"model_code": name, "model_code_sha256": hashlib.sha256(text).hexdigest()}
    return {}


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers before any suffix; a post-release counts as its release."""
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"[a-z+]", version, maxsplit=1)[0]))
