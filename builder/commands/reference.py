"""The reference page of the command line, made from the commands themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from builder.recipe.generated import GeneratedFile

if TYPE_CHECKING:
    from collections.abc import Iterator

REFERENCE_PATH = "docs/reference/cli.md"
_INTRODUCTION = """\
# The command line

<!-- Made from builder/cli.py and builder/commands by `envbuild schema --write`; do not edit. -->

Text for people goes to standard error, data to standard output; with `--json` that is one document, for failures too.

## Exit codes

| code | meaning |
| --- | --- |
| 0 | done; for `make` and `smoke`: good |
| 1 | a fault of envbuild itself |
| 2 | the command line or a setting names what does not exist, or cannot be read or written |
| 3 | a recipe or another document is not valid |
| 4 | a preflight rule refuses the recipe |
| 5 | a lock or a generated file is missing or not current |
| 6 | the pins cannot be satisfied together, or a file cannot be fetched |
| 7 | a build failed, or the disk is full |
| 8 | the verdict is bad |
| 9 | the engine or the machine cannot be used |
| 10 | not proven, or the proof does not hold: not published, not promoted, not verified |
| 11 | the registry refused or could not be reached |
| 12 | unverified: a required check could not run |
| 130 | interrupted |
| 141 | nobody reads the output any more, as in `envbuild status \\| head -1` |
"""


def command_reference(root: click.Command) -> str:
    """Return the text of the page: the exit codes, then every command with its options."""
    context = click.Context(root, info_name="envbuild", **root.context_settings)
    return "\n".join([_INTRODUCTION, *("\n".join(_section(each)) for each in _tree(context))])


def command_files(root: click.Command) -> tuple[GeneratedFile, ...]:
    """Return the files that are made from a command tree."""
    return (GeneratedFile(path=REFERENCE_PATH, text=command_reference(root)),)


def _tree(context: click.Context) -> Iterator[click.Context]:
    """Yield the contexts of a command and of all below it, in the order of their help."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None and not command.hidden:
                yield from _tree(click.Context(command, info_name=name, parent=context, **command.context_settings))


def _section(context: click.Context) -> Iterator[str]:
    yield f"## {context.command_path}\n"
    usage = " ".join(context.command.collect_usage_pieces(context))
    yield f"```\n{context.command_path} {usage}\n```\n"
    yield _paragraphs(context.command.help or "") + "\n"
    rows = [row for row in (_row(parameter, context) for parameter in context.command.get_params(context)) if row]
    if rows:
        yield "| option | meaning |"
        yield "| --- | --- |"
        yield from rows
        yield ""


def _paragraphs(text: str) -> str:
    """Return a docstring with one line for each paragraph."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


def _row(parameter: click.Parameter, context: click.Context) -> str | None:
    """Return the line of an option; arguments have no words of their own, and `--help` is said once, at the top."""
    is_help = context.parent is not None and not {*context.help_option_names}.isdisjoint(parameter.opts)
    record = parameter.get_help_record(context) if isinstance(parameter, click.Option) and not is_help else None
    if record is None:
        return None
    option, meaning = (text.replace("|", "\\|") for text in record)
    return f"| `{option}` | {' '.join(meaning.split())} |"
