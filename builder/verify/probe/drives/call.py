"""One call of the stack's host code, and how arguments find their parameters in every version of it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A call to drive. `decides`: the model that is served makes it, so a refusal is the stack's fault.

    `refuses`: it launches nothing, and an exception is the stack's own refusal of the target. `reaches`: it works on
    values that no kernel has made, so where an exception ends it is only said; any other call that decides must come to
    its end. What `run` returns as a list of texts is said too.
    """

    name: str
    run: Callable[[], object]
    decides: bool
    refuses: bool = False
    reaches: bool = False


def by_name(function: Callable[..., Any], known: Mapping[str, Any]) -> Callable[[], object]:
    """Return the call of a function with those of the known values that it has parameters for.

    Versions of a library add and move parameters; a required one that is not known is a TypeError when it is called.
    """
    names = inspect.signature(function).parameters
    return lambda: function(**{name: value for name, value in known.items() if name in names})
