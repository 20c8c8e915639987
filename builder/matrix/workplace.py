"""Where the variants of a search or a bisection live, how they are shown while they run, and how they are cleared."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.console import InnerConsole
from builder.document import key_of
from builder.matrix.trial import variant_tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from builder.matrix.outcome import Outcome
    from builder.tools import Tools

FOLDER = "searches"
VARIANTS = "variants"


@contextmanager
def workplace(name: str, question: object, tools: Tools) -> Iterator[Path]:
    """Give the folder of a search in the store, the same for the same question; nobody else works on it meanwhile."""
    key = key_of(question)[:12]
    folder = tools.store.root / FOLDER / f"{name}-{key}"
    with tools.store.exclusive(f"search-{key}"):
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def shown_run(text: str, tools: Tools, run: Callable[[Tools], Outcome]) -> Outcome:
    """Run a variant as one step that ends with its outcome; `--verbose` shows everything that the stages say."""
    with tools.console.step(text) as step:
        console = tools.console if tools.console.verbose else InnerConsole(step)
        inner = replace(tools, console=console, connect=lambda: tools.engine)
        outcome = run(inner)
        step.end(outcome.result if outcome.result == "good" else f"{outcome.result}: {outcome.cause}")
    return outcome


def clear(folder: Path, name: str, tools: Tools) -> None:
    """Remove the locks of the variants and the tags of their images; layers, wheels and verdicts stay in the store."""
    for variant in sorted((folder / VARIANTS).glob("*")):
        tools.engine.remove_image(f"envbuild/{name}:{variant_tag(variant)}")
    shutil.rmtree(folder / VARIANTS, ignore_errors=True)
