"""Unique names of values: no two values of a graph may have the same name."""

from __future__ import annotations

from collections.abc import Iterable


class UniqueNames:
    """Returns a different name for every value of an import."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        """Start with names that are already taken."""
        self._last = dict.fromkeys(taken, 1)  # the last number that was appended to each name

    def __contains__(self, name: str) -> bool:
        """Return whether the name is taken."""
        return name in self._last

    def take(self, name: str) -> str:
        """Return `name`, or `name:2`, `name:3`, … if it is taken, and mark the result as taken."""
        candidate, count = name, self._last.get(name, 1)
        while candidate in self._last:
            count += 1
            candidate = f"{name}:{count}"
        # Remember the last number, because an unrolled loop takes the same name very often.
        self._last[name] = count
        self._last.setdefault(candidate, 1)
        return candidate
