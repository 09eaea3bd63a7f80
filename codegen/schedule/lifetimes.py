"""Buffer lifetimes in slots of time, and which buffers may be written over another."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from smelt.codegen import arena


@dataclass(frozen=True)
class Reuse:
    """Permission to write `target` over `source` in slot `time`, if `source` is not read later."""

    time: int
    source: str
    target: str


class Lifetimes:
    """Slots of time, buffers, and the first and last slot in which each buffer is used.

    Branches that exclude each other get consecutive slots, so that their buffers may share memory.
    The body of a loop gets its slots once.
    """

    def __init__(self) -> None:
        self.slots: list[str] = []
        self._sizes: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._end: dict[str, int] = {}
        self._reuses: list[Reuse] = []

    def slot(self, name: str) -> int:
        """Append a slot of time and return its index; the name is for messages."""
        self.slots.append(name)
        return len(self.slots) - 1

    def buffer(self, name: str, size: int) -> str:
        """Add a buffer of `size` bytes; return its name, made unique by a number if necessary."""
        unique, count = name, 1
        while unique in self._sizes:
            count += 1
            unique = f"{name} ({count})"
        self._sizes[unique] = size
        return unique

    def size(self, buffer: str) -> int:
        """Return the size of a buffer in bytes."""
        return self._sizes[buffer]

    def use(self, buffer: str, time: int) -> None:
        """Record that the buffer is read or written in slot `time`."""
        self._first.setdefault(buffer, time)
        self._end[buffer] = max(self._end.get(buffer, 0), time + 1)

    def repeat(self, head: int, tail: int) -> None:
        """Mark slots `head` to `tail` as a loop: buffers that it reads stay live to its end."""
        for buffer, first in self._first.items():
            if first <= head and self._end[buffer] > head + 1:
                self._end[buffer] = max(self._end[buffer], tail + 1)

    def allow(self, reuse: Reuse) -> None:
        """Record where a buffer may be written over another."""
        self._reuses.append(reuse)

    def buffers(self, memory: str, alignment: int) -> Iterator[arena.Buffer]:
        """Yield the used buffers in order of their first use."""
        for name, first in self._first.items():
            size = self._sizes[name]
            yield arena.Buffer(name, size, first, self._end[name], (memory,), alignment)

    def in_place(self, fixed: AbstractSet[str]) -> tuple[arena.InPlace, ...]:
        """Return the pairs of buffers that may be written in place; neither is `fixed`.

        The target's lifetime must start in the slot of the permission. An earlier write, in another
        branch or as a carried value of a loop, would destroy the source.
        """
        found = {
            (reuse.source, reuse.target): arena.InPlace(reuse.source, reuse.target)
            for reuse in self._reuses
            if reuse.source != reuse.target
            and self._end[reuse.source] == reuse.time + 1
            and self._first[reuse.target] == reuse.time
            and not fixed & {reuse.source, reuse.target}
        }
        return tuple(found.values())
