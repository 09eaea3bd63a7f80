"""Buffer lifetimes in slots of time, and the overlaps that they allow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np

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
        self._uses: dict[str, list[arena.Span]] = {}
        self._held: dict[str, list[arena.Span]] = {}
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
        self.use_part(buffer, time, 0, self._sizes[buffer])

    def use_part(self, buffer: str, time: int, low: int, high: int) -> None:
        """Record that the bytes from `low` to `high - 1` are read or written in slot `time`.

        If a buffer is used in parts, each byte is live from its first to its last use only.
        """
        self._uses.setdefault(buffer, []).append(arena.Span(time, time + 1, low, high))
        self._first.setdefault(buffer, time)
        self._end[buffer] = max(self._end.get(buffer, 0), time + 1)

    def hold(self, buffer: str, start: int, end: int, low: int, high: int) -> None:
        """Record that exactly the bytes `low` to `high - 1` are live in slots `start` to `end - 1`.

        This is for bands and the scratch of their calls. Record all uses of such a buffer by this
        method, in the order of time, and none by `use`.
        """
        held = self._held.setdefault(buffer, [])
        held.append(arena.Span(start, end, low, high))
        self._first.setdefault(buffer, start)
        self._end[buffer] = end

    def repeat(self, head: int, tail: int) -> None:
        """Mark slots `head` to `tail` as a loop: buffers that it reads stay live to its end."""
        for buffer, first in self._first.items():
            if first <= head and self._end[buffer] > head + 1:
                self.use(buffer, tail)

    def allow(self, reuse: Reuse) -> None:
        """Record that a buffer may be written over another."""
        self._reuses.append(reuse)

    def buffers(self, memory: str, alignment: int) -> Iterator[arena.Buffer]:
        """Yield the used buffers in order of their first use."""
        for name, first in self._first.items():
            size, end = self._sizes[name], self._end[name]
            spans = self._spans(name)
            yield arena.Buffer(name, size, first, end, memory, alignment, spans=spans)

    def _spans(self, name: str) -> tuple[arena.Span, ...]:
        """Return the live bytes of a buffer; empty if all are live from first to last use."""
        if name in self._held:
            return _joined(self._held[name])
        uses = self._uses[name]
        if all((use.low, use.high) == (0, self._sizes[name]) for use in uses):
            return ()
        edges = sorted({0, self._sizes[name], *(e for use in uses for e in (use.low, use.high))})
        first = np.full(len(edges) - 1, len(self.slots) + 1)
        last = np.full(len(edges) - 1, -1)
        for use in uses:
            part = slice(bisect_left(edges, use.low), bisect_left(edges, use.high))
            np.minimum(first[part], use.start, out=first[part])
            np.maximum(last[part], use.start, out=last[part])
        slots = np.arange(self._first[name], self._end[name])[:, None]
        live = (first <= slots) & (slots <= last)
        some: list[int] = np.flatnonzero(live.any(axis=1)).tolist()
        low: list[int] = live.argmax(axis=1).tolist()
        above: list[int] = live[:, ::-1].argmax(axis=1).tolist()
        return _joined(
            [
                arena.Span(slot, slot + 1, edges[low[i]], edges[-1 - above[i]])
                for i in some
                for slot in (self._first[name] + i,)
            ]
        )

    def in_place(self, fixed: AbstractSet[str]) -> tuple[arena.InPlace, ...]:
        """Return pairs of buffers of which the second may be written over the first.

        The second buffer's lifetime must start in the slot of the permission. An earlier write, in
        another branch or as a carried value of a loop, would destroy the first buffer.

        Args:
            fixed: names of buffers that are in no pair.
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


def _joined(spans: Sequence[arena.Span]) -> tuple[arena.Span, ...]:
    """Join consecutive spans of the same bytes, and drop spans without bytes."""
    found: list[arena.Span] = []
    for span in spans:
        last = found[-1] if found else None
        if last and (last.end, last.low, last.high) == (span.start, span.low, span.high):
            found[-1] = replace(last, end=span.end)
        elif span.low < span.high:
            found.append(span)
    return tuple(found)
