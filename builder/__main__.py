"""Where the process begins: an interruption while the program itself is being loaded ends it as any other does."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType


def main() -> NoReturn:
    """Load the command line and run it."""
    signal.signal(signal.SIGINT, _stop)
    from builder.cli import main as run  # noqa: PLC0415 - the handler comes first

    run()


def _stop(_signal: int, _frame: FrameType | None) -> NoReturn:
    os.write(2, b"interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
