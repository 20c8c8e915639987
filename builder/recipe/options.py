"""Options of a server: their names as its parser reads them, and the words of a command line that give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Argument = str | int | float | bool


def option_name(written: str) -> str:
    """Return the one name of an option, however it is written: `kv-cache-dtype` for `--kv_cache_dtype`."""
    return written.lstrip("-").replace("_", "-")


def server_options(args: Mapping[str, Argument]) -> Iterator[str]:
    """Yield options as a command line, spelled as written: `--name value`, `--name` for true, nothing for false."""
    for name, value in args.items():
        if value is not False:
            yield f"--{name.lstrip('-')}"
        if not isinstance(value, bool):
            yield str(value)
