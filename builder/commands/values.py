"""The kinds of values that options take, each refused before any work begins if it cannot be meant."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import click

from builder.places import obstacle

DAY = 24 * 60 * 60.0


class Limit(click.FloatRange):
    """A number within bounds; what is no number at all, and so passes every bound, is refused too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """Return the number."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


class OutputPath(click.Path):
    """A place to write to."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:  # noqa: ANN401
        """Return the path."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if self.allow_dash and str(path) == "-":
            return path
        if why := obstacle(path):
            self.fail(f"{path} cannot be written: {why}", param, ctx)
        return path


OUTPUT = OutputPath()
OUTPUT_FILE = OutputPath(dir_okay=False)
OUTPUT_FOLDER = OutputPath(file_okay=False)
