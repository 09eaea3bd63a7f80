"""The buffers of one memory by index, and the offset differences that each pair allows."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from itertools import chain, pairwise
from operator import itemgetter

from smelt.codegen.arena.problem import Buffer, InPlace, Span

FAR = 1 << 62
"""Larger than every offset difference."""

Gaps = tuple[tuple[int, int], ...]
"""Open intervals of forbidden offset differences, in ascending order."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """One way for a pair to coexist: `low <= offset(second) - offset(first) <= high` (bytes)."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class BufferPair:
    """Two buffers that have live bytes in the same step.

    Attributes:
        first: The index of one buffer.
        second: The index of the other.
        gaps: The forbidden values of `offset(second) - offset(first)`.
    """

    first: int
    second: int
    gaps: Gaps

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """The allowed offset differences in ascending order."""
        return _between(self.gaps)


@dataclass(frozen=True)
class Arena:
    """The buffers that share one memory.

    Attributes:
        buffers: In the problem's order.
        apart: For each buffer, the indices of the buffers that it may never share a byte with
            while both last. These are almost all pairs, of which there can be millions.
        sharing: The other pairs of buffers that have live bytes in the same step.
        pair_count: The number of pairs of both kinds.
        in_place: For buffers that may share live bytes at equal offsets, the indices of the buffers
            that they may share them with.
        granule: The smallest alignment (bytes); every offset is a multiple of it.
    """

    buffers: tuple[Buffer, ...]
    apart: tuple[list[int], ...]
    sharing: tuple[BufferPair, ...]
    pair_count: int
    in_place: Mapping[int, AbstractSet[int]]
    granule: int

    def bytes_of(self, offsets: Sequence[int]) -> int:
        """Return the bytes that a layout needs, rounded up to whole granules."""
        ends = (o + b.size for o, b in zip(offsets, self.buffers, strict=True))
        return align_up(max(ends, default=0), self.granule)

    def pairs(self) -> Iterator[BufferPair]:
        """Yield the pairs of both kinds, by the first step of the later buffer."""
        sharing = {(pair.first, pair.second): pair for pair in self.sharing}
        for second, live in _live_before(self.buffers):
            apart = set(self.apart[second])
            for first in live:
                if first in apart:
                    yield BufferPair(first, second, _apart(self.buffers, first, second))
                elif (first, second) in sharing:
                    yield sharing[first, second]

    def components(self) -> Iterator[tuple[Sequence[int], "Arena"]]:
        """Yield the arena in parts that no pair connects, each with the indices of its buffers."""
        linked: dict[int, list[int]] = {}
        for pair in self.sharing:
            linked.setdefault(pair.first, []).append(pair.second)
            linked.setdefault(pair.second, []).append(pair.first)
        left = set(range(len(self.buffers)))
        for start in range(len(self.buffers)):
            if start not in left:
                continue
            found = [start]
            left.remove(start)
            for i in found:
                if not left:
                    break
                near = left.intersection(chain(self.apart[i], linked.get(i, ())))
                left -= near
                found += near
            yield (group := sorted(found)), self._part(group)

    def _part(self, indices: Sequence[int]) -> "Arena":
        if len(indices) == len(self.buffers):
            return self
        index = {i: k for k, i in enumerate(indices)}
        apart = tuple([index[j] for j in self.apart[i]] for i in indices)
        sharing = tuple(
            BufferPair(index[pair.first], index[pair.second], pair.gaps)
            for pair in self.sharing
            if pair.first in index
        )
        return Arena(
            buffers=tuple(self.buffers[i] for i in indices),
            apart=apart,
            sharing=sharing,
            pair_count=sum(map(len, apart)) // 2 + len(sharing),
            in_place={
                index[i]: {index[j] for j in others if j in index}
                for i, others in self.in_place.items()
                if i in index
            },
            granule=self.granule,
        )

    def live_at_starts(self) -> Iterator[tuple[int, dict[int, Span]]]:
        """Yield each step at which a span begins, with the step's spans by index of the buffer.

        The dictionary changes from one step to the next. The time per step is proportional to the
        number of spans that begin and end there.
        """
        live: dict[int, Span] = {}
        ends: list[tuple[int, int]] = []
        for step, begun in self._begun:
            while ends and ends[0][0] <= step:
                del live[heappop(ends)[1]]
            for i, span in begun.items():
                live[i] = span
                heappush(ends, (span.end, i))
            yield step, live

    @cached_property
    def _begun(self) -> list[tuple[int, dict[int, Span]]]:
        """Each step at which spans begin, in ascending order, with these spans."""
        begun: dict[int, dict[int, Span]] = {}
        for i, buffer in enumerate(self.buffers):
            for span in buffer.live:
                begun.setdefault(span.start, {})[i] = span
        return sorted(begun.items(), key=itemgetter(0))


def make_arena(buffers: Sequence[Buffer], in_place: Iterable[InPlace]) -> Arena:
    """Build an arena from its buffers; pairs with buffers of other memories are ignored."""
    allowed = _allowed(buffers, in_place)
    nobody: set[int] = set()
    partial = {i for i, b in enumerate(buffers) if b.spans}
    full = [_longest_full_span(b) for b in buffers]
    apart: tuple[list[int], ...] = tuple([] for _ in buffers)
    sharing: list[BufferPair] = []
    for second, live in _live_before(buffers):
        partners = allowed.get(second, nobody)
        exempt: set[int] = set()
        for first in live if partial or partners else ():
            partner = first in partners
            if not (partner or first in partial or second in partial):
                continue
            if not partner and _in_common(full[first], full[second]):
                continue
            gaps = _gaps(buffers[first], buffers[second], in_place=partner)
            if gaps != _apart(buffers, first, second):
                exempt.add(first)
                if gaps:
                    sharing.append(BufferPair(first, second, gaps))
        together = [first for first in live if first not in exempt] if exempt else live
        apart[second].extend(together)
        for first in together:
            apart[first].append(second)
    return Arena(
        buffers=tuple(buffers),
        apart=apart,
        sharing=tuple(sharing),
        pair_count=sum(map(len, apart)) // 2 + len(sharing),
        in_place=allowed,
        granule=min((b.alignment for b in buffers), default=1),
    )


def _allowed(buffers: Sequence[Buffer], in_place: Iterable[InPlace]) -> dict[int, set[int]]:
    """Return, by index, the buffers that each buffer is allowed to share live bytes with."""
    index = {b.name: i for i, b in enumerate(buffers) if b.size}
    allowed: dict[int, set[int]] = {}
    for pair in in_place:
        if pair.input in index and pair.output in index:
            a, b = index[pair.input], index[pair.output]
            allowed.setdefault(a, set()).add(b)
            allowed.setdefault(b, set()).add(a)
    return allowed


def _longest_full_span(buffer: Buffer) -> Span | None:
    """Return the longest span in which all bytes of a buffer are live, or None."""
    full = (span for span in buffer.live if span.high - span.low == buffer.size)
    return max(full, key=lambda span: span.end - span.start, default=None)


def _in_common(first: Span | None, second: Span | None) -> bool:
    """Return whether two spans have a step in common."""
    return (
        first is not None
        and second is not None
        and first.start < second.end
        and second.start < first.end
    )


def _live_before(buffers: Sequence[Buffer]) -> Iterator[tuple[int, Collection[int]]]:
    """Yield each non-empty buffer, by first step, with the earlier ones that still last then.

    The collection changes from one buffer to the next.
    """
    live: dict[int, None] = {}
    ends: list[tuple[int, int]] = []
    for second in sorted(range(len(buffers)), key=lambda i: buffers[i].start):
        if buffers[second].size == 0:
            continue
        while ends and ends[0][0] <= buffers[second].start:
            del live[heappop(ends)[1]]
        yield second, live.keys()
        live[second] = None
        heappush(ends, (buffers[second].end, second))


def _apart(buffers: Sequence[Buffer], first: int, second: int) -> Gaps:
    """Return the forbidden differences of two buffers that may not share a byte."""
    return ((-buffers[second].size, buffers[first].size),)


def _gaps(first: Buffer, second: Buffer, *, in_place: bool) -> Gaps:
    """Return the forbidden values of `offset(second) - offset(first)`.

    Allowed differences that are no multiple of the alignment are forbidden too.
    """
    alignment = min(first.alignment, second.alignment)
    gaps: list[tuple[int, int]] = []
    for low, high in sorted(_conflicts(first.live, second.live)):
        if gaps and align_up(gaps[-1][1], alignment) > low:
            gaps[-1] = gaps[-1][0], max(gaps[-1][1], high)
        else:
            gaps.append((low, high))
    if in_place:
        return tuple(part for gap in gaps for part in _without_zero(*gap))
    return tuple(gaps)


def _without_zero(low: int, high: int) -> Gaps:
    return ((low, 0), (0, high)) if low < 0 < high else ((low, high),)


def _conflicts(first: Sequence[Span], second: Sequence[Span]) -> set[tuple[int, int]]:
    """Return the open intervals of differences at which live bytes of two buffers coincide.

    One pass over both lists finds the spans that have steps in common.
    """
    found: set[tuple[int, int]] = set()
    i = bisect_right(first, second[0].start, key=lambda span: span.end)
    j = bisect_right(second, first[0].start, key=lambda span: span.end)
    while i < len(first) and j < len(second):
        a, b = first[i], second[j]
        if a.start < b.end and b.start < a.end:
            found.add((a.low - b.high, a.high - b.low))
        if a.end <= b.end:
            i += 1
        else:
            j += 1
    return found


@lru_cache(1 << 12)
def _between(gaps: Gaps) -> tuple[OffsetRange, ...]:
    edges = (-FAR, *(edge for gap in gaps for edge in gap), FAR)
    return tuple(OffsetRange(low, high) for low, high in list(pairwise(edges))[::2])


def align_up(value: int, alignment: int) -> int:
    """Return the smallest multiple of `alignment` (a power of two) that is not below `value`."""
    return (value + alignment - 1) & -alignment


def align_down(value: int, alignment: int) -> int:
    """Return the largest multiple of `alignment` (a power of two) that is not above `value`."""
    return value & -alignment
