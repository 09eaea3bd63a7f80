"""Formatting of numbers in messages."""

from __future__ import annotations

from decimal import Decimal

_LONG = 10**15
"""Counts from this one on are rounded."""


def number(count: int) -> str:
    """Return a count with commas; a count of very many digits is rounded, as 6.1e+60."""
    return f"{count:,}" if abs(count) < _LONG else f"{Decimal(count):.1e}"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 sample`, `2 samples`."""
    return f"{number(count)} {noun}" + ("" if count == 1 else "s")
