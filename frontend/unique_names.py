"""Names of values, each given once: a graph may not have two values of one name."""

from __future__ import annotations

from collections.abc import Iterable


class UniqueNames:
    """Gives every value of an import a name of its own."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        """Begin with names that are taken already."""
        self._last = dict.fromkeys(taken, 1)  # the last number that was put behind each name

    def __contains__(self, name: str) -> bool:
        """Whether the name is taken."""
        return name in self._last

    def take(self, name: str) -> str:
        """`name`, or `name:2`, `name:3`, … if it is taken; taken from now on."""
        candidate, count = name, self._last.get(name, 1)
        while candidate in self._last:
            count += 1
            candidate = f"{name}:{count}"
        # The search goes on from here: a loop written out makes a name very often.
        self._last[name] = count
        self._last.setdefault(candidate, 1)
        return candidate
