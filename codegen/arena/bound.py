"""A lower bound of the bytes that any layout of an arena needs."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import numpy as np
import numpy.typing as npt

from smelt.codegen.arena.conflict import Arena, align_up
from smelt.codegen.arena.problem import Span

IntArray = npt.NDArray[np.int64]

Extents = Mapping[int, tuple[int, int]]
"""The first live byte of each buffer, and the byte after its last one."""


def live_bytes(arena: Arena) -> tuple[IntArray, IntArray]:
    """Return the steps at which spans begin, in ascending order, and the live bytes at each.

    If the live bytes of all buffers begin at a granule, they are counted in whole granules: only
    then no two buffers can have bytes in the same granule.
    """
    spans = [span for buffer in arena.buffers for span in buffer.live]
    table = np.array([(s.start, s.end, s.low, s.high) for s in spans], np.int64).reshape(-1, 4)
    starts, ends, low, high = table.T
    steps = np.unique(starts)
    change = np.zeros((len(steps) + 1, 3), np.int64)
    rounded = (high + arena.granule - 1) & -arena.granule
    counted: IntArray = np.stack([high - low, rounded - low, low % arena.granule != 0], axis=1)
    np.add.at(change, np.searchsorted(steps, starts), counted)
    np.subtract.at(change, np.searchsorted(steps, ends), counted)
    totals: IntArray = np.cumsum(change[:-1], axis=0)
    aligned = totals[:, 2] == 0
    return steps, totals[:, 0] + aligned * (totals[:, 1] - totals[:, 0])


def pressure(arena: Arena) -> list[int]:
    """Return the most live bytes in the lifetime of each buffer."""
    steps, live = live_bytes(arena)
    first = np.searchsorted(steps, [b.start for b in arena.buffers])
    last = np.searchsorted(steps, [b.end for b in arena.buffers])
    return [int(live[i:j].max()) for i, j in zip(first, last, strict=True)]


def lower_bound(arena: Arena) -> tuple[int, int]:
    """Return the bound in bytes, and the first step at which it is reached.

    At every step, the buffers cover at least the sum of their live bytes, minus those that buffers
    in place of one another can share. Every whole buffer needs room too, since its dead bytes may
    not be outside the memory.
    """
    best = peak = 0
    granule = arena.granule
    steps, totals = live_bytes(arena)
    if arena.in_place:
        for total, (step, live) in zip(totals.tolist(), arena.live_at_starts(), strict=True):
            covered = _covered(_extents(live, granule), arena.in_place) if total > best else 0
            if covered > best:
                best, peak = align_up(covered, granule), step
    elif len(steps):
        rounded = (totals + granule - 1) & -granule
        highest = int(rounded.argmax())
        best, peak = int(rounded[highest]), int(steps[highest])
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
