"""The buffers of one memory by index, and the offset differences that each pair allows."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from smelt.codegen.arena.problem import Buffer, Overlap, WriteOrder

FAR = 1 << 62
"""Larger than every offset difference."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """One way for a pair to coexist: `low <= offset(second) - offset(first) <= high` (bytes).

    `order` is the write order that the pair's step must have, or None if any will do.
    """

    low: int
    high: int
    order: WriteOrder | None = None

    def usable(self, order: WriteOrder | None) -> bool:
        """Return whether the step's write order (None: not yet decided) permits this choice."""
        return self.order is None or order is None or self.order is order

    def within(self, other: "OffsetRange") -> bool:
        """Return whether `other` allows every layout that this choice allows."""
        inside = other.low <= self.low and self.high <= other.high
        return inside and (other.order is None or other.order is self.order)


@dataclass(frozen=True, slots=True)
class BufferPair:
    """Two buffers that are live at the same time.

    Attributes:
        first: The index of one buffer.
        second: The index of the other.
        step: The step whose write order the choices refer to.
        choices: The allowed offset differences.
        apart: Whether they may not share a byte, which is true for almost all pairs.
    """

    first: int
    second: int
    step: int
    choices: tuple[OffsetRange, ...]
    apart: bool

    def gaps(self, order: WriteOrder | None) -> tuple[tuple[int, int], ...]:
        """Return open intervals of `offset(second) - offset(first)` that no choice allows."""
        usable = sorted((c.low, c.high) for c in self.choices if c.usable(order))
        gaps: list[tuple[int, int]] = []
        reach = usable[0][1]
        for low, high in usable[1:]:
            if low > reach + 1:
                gaps.append((reach, low))
            reach = max(reach, high)
        return tuple(gaps)


@dataclass(frozen=True)
class Arena:
    """The buffers that share one memory.

    Attributes:
        buffers: In the problem's order.
        apart: For each buffer, the indices of the buffers that are live at the same time and may
            not share a byte with it. These are almost all pairs, of which there can be millions.
        sharing: The other pairs of buffers that are live at the same time.
        pair_count: The number of pairs of both kinds.
        contested: Steps with several diagonal overlaps, which must agree on a write order.
        granule: The smallest alignment (bytes); every offset is a multiple of it.
    """

    buffers: tuple[Buffer, ...]
    apart: tuple[list[int], ...]
    sharing: tuple[BufferPair, ...]
    pair_count: int
    contested: tuple[int, ...]
    granule: int

    def bytes_of(self, offsets: Sequence[int]) -> int:
        """Return the bytes that a layout needs, rounded up to whole granules."""
        ends = (o + b.size for o, b in zip(offsets, self.buffers, strict=True))
        return align_up(max(ends, default=0), self.granule)

    def pairs(self) -> Iterator[BufferPair]:
        """Yield all pairs of buffers live at the same time, by the first step of the later one."""
        sharing = {frozenset((p.first, p.second)): p for p in self.sharing}
        for second, live in _live_before(self.buffers):
            for first in live:
                pair = sharing.get(frozenset((first, second)))
                yield pair or _pair_apart(self.buffers, first, second)


def make_arena(buffers: Sequence[Buffer], overlaps: Iterable[Overlap]) -> Arena:
    """Build an arena from its buffers; overlaps with buffers of other memories are ignored."""
    index = {b.name: i for i, b in enumerate(buffers)}
    inside = [o for o in overlaps if o.input in index and o.output in index]
    directed = Counter(buffers[index[o.output]].start for o in inside if o.directed)
    contested = tuple(sorted(step for step, count in directed.items() if count > 1))
    partners: dict[int, dict[int, Overlap]] = {}
    for overlap in inside:
        a, b = index[overlap.input], index[overlap.output]
        partners.setdefault(a, {})[b] = overlap
        partners.setdefault(b, {})[a] = overlap
    apart: tuple[list[int], ...] = tuple([] for _ in buffers)
    sharing: list[BufferPair] = []
    count = 0
    for second, live in _live_before(buffers):
        count += len(live)
        allowed = partners.get(second, {})
        for first in live:
            if first in allowed:
                pair = _make_pair(buffers, index, contested, allowed[first])
                if not pair.apart:
                    sharing.append(pair)
                    continue
            apart[second].append(first)
            apart[first].append(second)
    granule = min((b.alignment for b in buffers), default=1)
    return Arena(tuple(buffers), apart, tuple(sharing), count, contested, granule)


def _live_before(buffers: Sequence[Buffer]) -> Iterator[tuple[int, list[int]]]:
    """Yield each non-empty buffer, by first step, with the earlier ones still live at that step."""
    live: list[int] = []
    for second in sorted(range(len(buffers)), key=lambda i: buffers[i].start):
        if buffers[second].size == 0:
            continue
        live = [i for i in live if buffers[i].end > buffers[second].start]
        yield second, live
        live.append(second)


def _pair_apart(buffers: Sequence[Buffer], first: int, second: int) -> BufferPair:
    a, b = buffers[first], buffers[second]
    return BufferPair(first, second, b.start, _disjoint_ranges(a.size, b.size), apart=True)


def _make_pair(
    buffers: Sequence[Buffer],
    index: dict[str, int],
    contested: tuple[int, ...],
    overlap: Overlap,
) -> BufferPair:
    """Return the pair of buffers that an overlap refers to."""
    first, second = index[overlap.input], index[overlap.output]
    a, b = buffers[first], buffers[second]
    apart = _disjoint_ranges(a.size, b.size)
    alignment = min(a.alignment, b.alignment)
    choices = [*apart, *(OffsetRange(d, d) for d in overlap.deltas if d % alignment == 0)]
    free = b.start not in contested
    if overlap.ascending is not None:
        order = None if free else WriteOrder.ASCENDING
        choices.append(OffsetRange(-FAR, -overlap.ascending, order))
    if overlap.descending is not None:
        order = None if free else WriteOrder.DESCENDING
        choices.append(OffsetRange(overlap.descending, FAR, order))
    kept = _undominated(choices)
    return BufferPair(first, second, b.start, kept, apart=kept == apart)


@lru_cache(1 << 12)
def _disjoint_ranges(first: int, second: int) -> tuple[OffsetRange, OffsetRange]:
    """Return the two choices for buffers of these sizes that share no byte: before or after."""
    return OffsetRange(-FAR, -second), OffsetRange(first, FAR)


def _undominated(choices: list[OffsetRange]) -> tuple[OffsetRange, ...]:
    kept: list[OffsetRange] = []
    for choice in sorted(set(choices), key=lambda c: (c.low - c.high, c.low, c.order or "")):
        if not any(choice.within(other) for other in kept):
            kept.append(choice)
    return tuple(sorted(kept, key=lambda c: (c.low, c.high, c.order or "")))


def live_at_starts(buffers: Sequence[Buffer]) -> Iterator[tuple[int, list[int]]]:
    """Yield each step at which a buffer begins, with the ascending indices of the live buffers.

    The time per step is proportional to the number of live buffers, not of all buffers.
    """
    by_start = sorted(range(len(buffers)), key=lambda i: buffers[i].start)
    live: list[int] = []
    for step, begun in groupby(by_start, key=lambda i: buffers[i].start):
        live = sorted([*(i for i in live if buffers[i].end > step), *begun])
        yield step, live


def align_up(value: int, alignment: int) -> int:
    """Return the smallest multiple of `alignment` (a power of two) that is not below `value`."""
    return (value + alignment - 1) & -alignment


def align_down(value: int, alignment: int) -> int:
    """Return the largest multiple of `alignment` (a power of two) that is not above `value`."""
    return value & -alignment
