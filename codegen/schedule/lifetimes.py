"""When buffers are in use, in slots of time, and the planning problem that follows."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from smelt.codegen import arena


@dataclass(frozen=True)
class Reuse:
    """In slot `time`, `target` may be written over `source` if that is read for the last time."""

    time: int
    source: str
    target: str


class Lifetimes:
    """Slots of time, buffers, and the slots that each buffer is first and last used in.

    Branches that exclude each other come one after the other in time, so that what either needs
    for itself may share memory; a loop's body comes once.
    """

    def __init__(self) -> None:
        self.slots: list[str] = []
        self._sizes: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._end: dict[str, int] = {}
        self._reuses: list[Reuse] = []

    def slot(self, name: str) -> int:
        """The next slot of time; the name is for messages."""
        self.slots.append(name)
        return len(self.slots) - 1

    def buffer(self, name: str, size: int) -> str:
        """A new buffer of `size` bytes; its name is `name`, with a number if that is taken."""
        unique, count = name, 1
        while unique in self._sizes:
            count += 1
            unique = f"{name} ({count})"
        self._sizes[unique] = size
        return unique

    def size(self, buffer: str) -> int:
        """Bytes of a buffer."""
        return self._sizes[buffer]

    def use(self, buffer: str, time: int) -> None:
        """The buffer is read or written in slot `time`."""
        self._first.setdefault(buffer, time)
        self._end[buffer] = max(self._end.get(buffer, 0), time + 1)

    def repeat(self, head: int, tail: int) -> None:
        """The slots from `head` to `tail` are a loop: keep what they take from before it."""
        for buffer, first in self._first.items():
            if first <= head and self._end[buffer] > head + 1:
                self._end[buffer] = max(self._end[buffer], tail + 1)

    def allow(self, reuse: Reuse) -> None:
        """Note where a buffer may be written over another."""
        self._reuses.append(reuse)

    def buffers(self, memory: str, alignment: int) -> Iterator[arena.Buffer]:
        """The buffers in use, in order of their first use."""
        for name, first in self._first.items():
            size = self._sizes[name]
            yield arena.Buffer(name, size, first, self._end[name], (memory,), alignment)

    def overlaps(self, fixed: AbstractSet[str]) -> tuple[arena.Overlap, ...]:
        """Where a buffer may be written over another, neither being `fixed`.

        The target must start its life then: earlier writes, in another branch or as what a loop
        carries, would destroy the source.
        """
        found = {
            (reuse.source, reuse.target): arena.Overlap(reuse.source, reuse.target, deltas=(0,))
            for reuse in self._reuses
            if reuse.source != reuse.target
            and self._end[reuse.source] == reuse.time + 1
            and self._first[reuse.target] == reuse.time
            and not fixed & {reuse.source, reuse.target}
        }
        return tuple(found.values())
