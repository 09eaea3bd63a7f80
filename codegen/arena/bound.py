"""A lower bound of the bytes that any layout of an arena needs."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from smelt.codegen.arena.conflict import Arena, align_up
from smelt.codegen.arena.problem import Span

Extents = Mapping[int, tuple[int, int]]
"""The first live byte of each buffer, and the byte after its last one."""


def lower_bound(arena: Arena) -> tuple[int, int]:
    """Return the bound in bytes, and the first step at which it is reached.

    At every step, the buffers cover at least the sum of their live bytes, minus those that buffers
    in place of one another can share. Every whole buffer needs room too, since its dead bytes may
    not be outside the memory.
    """
    best = peak = 0
    granule = arena.granule
    for step, live in arena.live_at_starts():
        extents = _extents(live, granule)
        total = sum(high - low for low, high in extents.values())
        if total > best and arena.in_place:
            total = _covered(extents, arena.in_place)
        if total > best:
            best, peak = align_up(total, granule), step
    for buffer in arena.buffers:
        end = align_up((buffer.offset or 0) + buffer.size, granule)
        if end > best:
            best, peak = end, buffer.start
    return best, peak


def _extents(live: Mapping[int, Span], granule: int) -> Extents:
    """Return the live bytes of each buffer, in whole granules if all begin at one.

    Only then no two of them can have bytes in the same granule.
    """
    aligned = all(span.low % granule == 0 for span in live.values())
    unit = granule if aligned else 1
    return {i: (span.low, align_up(span.high, unit)) for i, span in live.items()}


def _covered(extents: Extents, partners: Mapping[int, AbstractSet[int]]) -> int:
    """Return a bound of the bytes that all extents cover together.

    To bound what they share, buffers are inserted one by one. Each buffer shares with its
    predecessors at most its own bytes, and at most the sum of what the pairs can share at equal
    offsets. Every order gives a valid bound.
    """
    best = 0
    ascending = sorted(extents)
    for sequence in (ascending, ascending[::-1]):
        seen: set[int] = set()
        covered = 0
        for i in sequence:
            low, high = extents[i]
            others = (extents[j] for j in partners.get(i, set[int]()) & seen)
            shared = sum(max(0, min(high, end) - max(low, start)) for start, end in others)
            covered += max(0, high - low - shared)
            seen.add(i)
        best = max(best, covered)
    return best
