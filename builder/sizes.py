"""Bytes as people read them."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB")


def shown_bytes(size: int) -> str:
    """Return a number of bytes with a decimal unit, such as `1.3 GB`."""
    amount, unit = float(abs(size)), 0
    while amount >= 999.5 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    digits = 0 if unit == 0 or amount >= 99.95 else 1
    return f"{'-' if size < 0 else ''}{amount:.{digits}f} {_UNITS[unit]}"


def shown_delta(size: int) -> str:
    """Return a difference of bytes with its sign; nothing for none."""
    return "" if size == 0 else f"{'+' if size > 0 else ''}{shown_bytes(size)}"
