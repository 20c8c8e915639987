"""The knowledge as one value: every file of it read, checked and indexed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources
from typing import TYPE_CHECKING

from builder.diagnose.pattern import pattern_of
from builder.diagnose.schema import KnowledgeFile
from builder.document import read_yaml_bytes
from builder.errors import InvalidDocumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from builder.diagnose.pattern import Pattern
    from builder.diagnose.schema import ClassAbout, Finding


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """All that is known; the files in the order read, so that a user's findings come after the built-in ones."""

    files: tuple[KnowledgeFile, ...] = field(repr=False)

    @cached_property
    def classes(self) -> Mapping[str, ClassAbout]:
        """Every class of failures in words, by name."""
        return {name: about for file in self.files for name, about in file.classes.items()}

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Every finding."""
        return tuple(finding for file in self.files for finding in file.findings)

    @cached_property
    def signals(self) -> Mapping[str, tuple[str, ...]]:
        """The named signals: `@name` in a condition stands for these patterns."""
        return {name: lines for file in self.files for name, lines in file.signals.items()}

    @cached_property
    def patterns(self) -> Mapping[str, Pattern]:
        """Every pattern that is used anywhere, by its source."""
        return {line: pattern_of(line) for line in sorted(set(self._lines()))}

    @cached_property
    def by_anchor(self) -> Mapping[bytes, tuple[str, ...]]:
        """The patterns to try on a line that holds an anchor."""
        index: dict[bytes, list[str]] = {}
        for source, pattern in self.patterns.items():
            for anchor in pattern.anchors:
                index.setdefault(anchor, []).append(source)
        return {anchor: tuple(sources) for anchor, sources in index.items()}

    def expand(self, lines: Iterable[str]) -> tuple[str, ...]:
        """Return patterns with every `@name` replaced by the patterns of that signal."""
        found: list[str] = []
        for line in lines:
            found += self.signals[line[1:]] if line.startswith("@") else (line,)
        return tuple(found)

    def finding(self, name: str) -> Finding | None:
        """Return a finding by its name."""
        return next((finding for finding in self.findings if finding.name == name), None)

    def _lines(self) -> Iterator[str]:
        for file in self.files:
            for group in _groups(file):
                yield from self.expand(group)


def _groups(file: KnowledgeFile) -> Iterator[tuple[str, ...]]:
    """Yield every list of patterns of a file."""
    yield from file.signals.values()
    for finding in file.findings:
        for condition in (*finding.all, *finding.unless, *finding.support):
            yield condition.lines
    for part in (file.misleading, file.markers, file.versions, file.settings, file.env, file.gpus):
        for entry in part:
            yield entry.lines
    yield from (file.starts, file.ready, file.alive, file.built, file.stopped, file.failures, file.consequences)
    yield from (
        file.frames,
        file.asynchronous,
        file.setting_lines,
        tuple(environment_pattern(known.variable) for known in file.env),
    )


def environment_pattern(name: str) -> str:
    """Return the pattern of lines that speak of an environment variable with a value."""
    return f"{name.lower()}="


@cache
def built_in() -> Knowledge:
    """Return the knowledge that comes with envbuild."""
    folder = resources.files("builder.diagnose") / "knowledge"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    return _checked(tuple(_parse((folder / name).read_bytes(), source=name) for name in names))


def knowledge_with(findings: Path | None) -> Knowledge:
    """Return the built-in knowledge and that of a folder of YAML files (a missing folder adds nothing).

    Raises InvalidDocumentError naming the file and the place where one does not follow the schema.
    """
    known = built_in()
    if findings is None or not findings.is_dir():
        return known
    own = tuple(_parse(path.read_bytes(), source=str(path)) for path in sorted(findings.glob("*.yaml")))
    return _checked((*known.files, *own)) if own else known


def _parse(data: bytes, *, source: str) -> KnowledgeFile:
    plain = read_yaml_bytes(data, source=source)
    return KnowledgeFile.from_json(json.dumps({} if plain is None else plain, default=str), source=source, remedy="")


def _checked(files: tuple[KnowledgeFile, ...]) -> Knowledge:
    """Return the knowledge if every name in it leads somewhere."""
    knowledge = Knowledge(files=files)
    names = [finding.name for finding in knowledge.findings]
    for finding in knowledge.findings:
        if names.count(finding.name) > 1:
            raise InvalidDocumentError(f"findings: {finding.name}: two findings have this name")
        if finding.kind not in knowledge.classes:
            raise InvalidDocumentError(f"findings: {finding.name}: no class is called {finding.kind}")
        if finding.refines is not None and finding.refines not in names:
            raise InvalidDocumentError(f"findings: {finding.name}: refines {finding.refines}, which does not exist")
    for file in files:
        _check_signals(knowledge, file)
    return knowledge


def _check_signals(knowledge: Knowledge, file: KnowledgeFile) -> None:
    for group in _groups(file):
        for line in group:
            if line.startswith("@") and line[1:] not in knowledge.signals:
                raise InvalidDocumentError(f"findings: no signal is called {line}")
