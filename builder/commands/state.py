"""What every command has: the console, the tools of the road, and the arguments that many commands share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.commands.complete import complete_recipes
from builder.console import Console
from builder.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.engine import Engine
    from builder.tools import Tools
    from builder.verify.verdict import Verdict

RECIPE_PATH = click.Path(path_type=Path, dir_okay=False)


def _remember(context: click.Context, _parameter: click.Parameter, value: Path) -> Path:
    """Note which recipe a command works on: if a stage fails, its log is read with that recipe in mind."""
    context.ensure_object(State).recipe = value
    return value


RECIPE = click.argument("recipe", type=RECIPE_PATH, shell_complete=complete_recipes, callback=_remember)
SAVE_FINDING = "Write what cured a failure to findings/, where `diagnose` reads it."
RETRY = click.option(
    "--retry", is_flag=True, help="Try a compilation again that failed before with exactly the same inputs."
)
_EXIT = {"good": ExitCode.DONE, "bad": ExitCode.BAD, "unverified": ExitCode.UNVERIFIED}


class State:
    """What every command of one call shares: the console, and the tools made when they are first needed."""

    def __init__(self) -> None:
        self.console = Console()
        self.recipe: Path | None = None

    def tools(self, *, retry: bool = False, **changed: Any) -> Tools:  # noqa: ANN401 - fields of Settings
        """Return the tools of the road; opens the store, not yet the engine.

        `changed` are settings of this call, in place of the machine's where they are not None.
        """
        from builder.settings import settings_from
        from builder.store import Store
        from builder.tools import Tools

        given = {name: value for name, value in changed.items() if value is not None}
        settings = replace(settings_from(), **given)
        return Tools(
            settings=settings,
            store=Store(settings.store, self.console.say),
            console=self.console,
            connect=connect_engine,
            retry=retry,
        )


def connect_engine() -> Engine:
    """Connect to the engine of this machine's settings; raise EngineError, with the remedy, if there is none."""
    from builder.dockerd.client import connect
    from builder.settings import settings_from

    return connect(settings_from())


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option `--json`."""

    def switch(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
        if value:
            context.ensure_object(State).console.json = True

    return click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        callback=switch,
        help="Write one JSON document to standard output; text for people goes to standard error.",
    )(function)


def conclude(state: State, verdict: Verdict) -> int:
    """Return the exit code of a verdict, after its document where one is asked for."""
    if state.console.json:
        state.console.document(verdict.to_plain())
    return _EXIT[verdict.result]
