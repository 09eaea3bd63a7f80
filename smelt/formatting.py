"""How messages write numbers."""

from __future__ import annotations

from decimal import Decimal

_LONG = 10**15
"""The least count that is not written out."""


def number(count: int) -> str:
    """A count with commas; rounded, as 6.1e+60, where it has very many digits."""
    return f"{count:,}" if abs(count) < _LONG else f"{Decimal(count):.1e}"


def counted(count: int, noun: str) -> str:
    """A number of things: `1 sample`, `2 samples`."""
    return f"{number(count)} {noun}" + ("" if count == 1 else "s")
