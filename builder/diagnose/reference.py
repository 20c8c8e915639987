"""The page docs/reference/diagnosis-classes.md, made from the knowledge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.diagnose.knowledge import built_in
from builder.recipe.generated import GeneratedFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.diagnose.knowledge import Knowledge

PAGE = "docs/reference/diagnosis-classes.md"
_HEAD = (
    "# Classes of failures",
    "",
    "What `envbuild diagnose` knows, made from `builder/diagnose/knowledge/*.yaml`.",
    "`envbuild diagnose --explain CLASS` prints one class. `unknown` stands for failures that nothing here fits.",
)


def reference_page() -> str:
    """Return the page as Markdown: every class with its findings, by name."""
    return "\n".join(_lines(built_in())) + "\n"


def diagnosis_files() -> tuple[GeneratedFile, ...]:
    """Return the page as a generated file of the project."""
    return (GeneratedFile(path=PAGE, text=reference_page()),)


def _lines(knowledge: Knowledge) -> Iterator[str]:
    yield from _HEAD
    for name in sorted(knowledge.classes):
        about = knowledge.classes[name]
        yield ""
        yield f"## {name}"
        yield ""
        yield f"{about.title[0].upper()}{about.title[1:]}. {about.about}"
        yield ""
        yield "| Finding | Phase | Cause | Remedy |"
        yield "|---|---|---|---|"
        for finding in knowledge.findings:
            if finding.kind == name:
                yield f"| {finding.name} | {finding.phase} | {_cell(finding.cause)} | {_cell(finding.remedy)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
