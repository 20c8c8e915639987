"""What is known about the stack: the log first, because it ran, then the lock, then the recipe."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.diagnose.knowledge import environment_pattern
from builder.diagnose.model import Facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from builder.diagnose.knowledge import Knowledge
    from builder.diagnose.observe import Hit, Observation
    from builder.diagnose.schema import EnvFact
    from builder.lock.model import Lock
    from builder.recipe.model import Recipe
    from builder.verify.reported import Value

_ASSIGNMENT = re.compile(
    r"\b([a-z][a-z0-9_]{2,60})'?[=:] ?(?:'([^']{0,200})'|\"([^\"]{0,200})\"|(True|False|None|-?\d+(?:\.\d+)?)\b)"
)
_OPTION = re.compile(r"--([a-z][a-z0-9-]{2,60})[= ]([^\s'\"-][^\s'\"]{0,200})")
_SUGGESTED = re.compile(
    r"\b(?:set|use|try|passing|with|setting|consider|via|using|define|or|and|e\.g\.)\s+['\"`]?$", re.IGNORECASE
)
_WORDS: Mapping[str, Value | None] = {"True": True, "False": False, "None": None}


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownFacts:
    """The facts, and the lines of the log that told them (by `version:x`, `setting:x`, `env:x`)."""

    facts: Facts
    origins: Mapping[str, Hit] = field(default_factory=dict)


@dataclass(slots=True)
class _Gathering:
    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Value] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    origins: dict[str, Hit] = field(default_factory=dict)
    gpu: tuple[str, str] | None = None


def gather_facts(
    seen: Observation, knowledge: Knowledge, *, recipe: Recipe | None, lock: Lock | None, capability: str | None
) -> KnownFacts:
    """Put together what the log, the lock and the recipe say; `capability` (such as `12.0`) overrules the log."""
    got = _Gathering()
    _from_log(got, seen, knowledge)
    if lock is not None:
        for wheel in lock.wheels:
            got.versions.setdefault(wheel.name, wheel.version)
    if recipe is not None:
        _from_recipe(got, recipe, knowledge)
    _from_pins(got, knowledge)
    name, own = got.gpu or (None, None)
    facts = Facts(versions=got.versions, settings=got.settings, env=got.env, gpu=name, capability=capability or own)
    return KnownFacts(facts=facts, origins=got.origins)


def _from_log(got: _Gathering, seen: Observation, knowledge: Knowledge) -> None:
    for hit in seen.setting_lines:
        for name, value in _settings(hit.line.text):
            got.settings[name] = value
            got.origins[f"setting:{name}"] = hit
    for file in knowledge.files:
        for known in file.settings:
            for hit in seen.hits(knowledge.expand(known.lines)):
                got.settings[known.setting] = hit.holes["value"] if known.value is None else known.value
                got.origins[f"setting:{known.setting}"] = hit
        for version in file.versions:
            for hit in seen.hits(knowledge.expand(version.lines))[:1]:
                got.versions.setdefault(version.package, hit.holes["value"])
                got.origins.setdefault(f"version:{version.package}", hit)
        _environment(got, seen, knowledge, file.env)
        for gpu in file.gpus:
            if got.gpu is None and seen.hits(knowledge.expand(gpu.lines)):
                got.gpu = (gpu.gpu, gpu.capability)


def _environment(got: _Gathering, seen: Observation, knowledge: Knowledge, variables: Iterable[EnvFact]) -> None:
    """Take variables from lines that show what they do, and from those that set them, not from mere proposals."""
    for known in variables:
        name = known.variable
        for hit in seen.hits(knowledge.expand(known.lines)):
            got.env[name] = known.value
            got.origins[f"env:{name}"] = hit
        for hit in seen.hits((environment_pattern(name),)):
            before, _, after = hit.line.text.partition(f"{name}=")
            value = re.match(r"['\"]?([\w./:+-]{0,120})", after)
            if value and not _SUGGESTED.search(before[-20:]):
                got.env[name] = value[1]
                got.origins[f"env:{name}"] = hit


def _settings(text: str) -> Iterator[tuple[str, Value]]:
    """Yield settings as servers spell them: `kv_cache_dtype='auto'`, `'dtype': 'x'`, `--kv-cache-dtype auto`."""
    for found in _ASSIGNMENT.finditer(text):
        name = found[1].replace("_", "-")
        if found[4] is None:
            yield name, found[2] or found[3] or ""
        elif (value := _WORDS.get(found[4], found[4])) is not None:
            yield name, value
    for found in _OPTION.finditer(text):
        yield found[1], found[2]


def _from_recipe(got: _Gathering, recipe: Recipe, knowledge: Knowledge) -> None:
    for name, package in recipe.stack.items():
        if package.version is not None:
            got.versions.setdefault(name, package.version)
    if recipe.cuda is not None:
        got.versions.setdefault("cuda", recipe.cuda)
    if recipe.host is not None:
        got.versions.setdefault("driver", recipe.host.driver)
    if recipe.serve is not None:
        for name, value in recipe.serve.options.items():
            got.settings.setdefault(name, value)
        for variable, text in recipe.serve.env.items():
            got.env.setdefault(variable, text)
    if got.gpu is None:
        got.gpu = _gpu_by_id(recipe.target.gpu, knowledge)


def _gpu_by_id(target: str, knowledge: Knowledge) -> tuple[str, str] | None:
    name = target.replace("-", " ")
    for file in knowledge.files:
        for gpu in file.gpus:
            if any(knowledge.patterns[line].match(name) is not None for line in knowledge.expand(gpu.lines)):
                return gpu.gpu, gpu.capability
    return None


def _from_pins(got: _Gathering, knowledge: Knowledge) -> None:
    """Fill in what a known release brings with it."""
    for file in knowledge.files:
        for pin in file.pins:
            if got.versions.get(pin.package) == pin.version:
                for name, version in pin.brings.items():
                    got.versions.setdefault(name, version)
