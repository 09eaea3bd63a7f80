"""A lower bound of the bytes that any layout of an arena needs."""

from collections.abc import Sequence

from smelt.codegen.arena.conflict import (
    Arena,
    BufferPair,
    OffsetRange,
    align_down,
    align_up,
    live_at_starts,
)
from smelt.codegen.arena.problem import WriteOrder


def lower_bound(arena: Arena) -> tuple[int, int]:
    """Return the bound in bytes, and the first step at which it is reached.

    All sizes are in granules, because every offset is a multiple of a granule. At every step, the
    live buffers cover at least the sum of their sizes minus the savings of the allowed overlaps. To
    bound the savings, buffers are inserted one by one. Each buffer shares with its predecessors at
    most its own size, and at most the sum of what the pairs can share. Every insertion order gives
    a valid bound.
    """
    granule = arena.granule
    sizes = [align_up(b.size, granule) for b in arena.buffers]
    pinned = (
        b.offset + s for b, s in zip(arena.buffers, sizes, strict=True) if b.offset is not None
    )
    best, peak = max(pinned, default=0), 0
    sharing: dict[int, list[BufferPair]] = {}
    for pair in arena.sharing:
        if _saving(pair, sizes, None, granule):
            sharing.setdefault(pair.first, []).append(pair)
    for step, live in live_at_starts(arena.buffers):
        total = sum(sizes[i] for i in live)
        if total > best and sharing:
            here = set(live)
            pairs = [p for i in live for p in sharing.get(i, ()) if p.second in here]
            if pairs:
                total = min(_covered(live, pairs, sizes, order, granule) for order in WriteOrder)
        if total > best:
            best, peak = total, step
    return best, peak


def _covered(
    live: list[int], pairs: list[BufferPair], sizes: Sequence[int], order: WriteOrder, granule: int
) -> int:
    savings = {frozenset((p.first, p.second)): _saving(p, sizes, order, granule) for p in pairs}
    partners: dict[int, set[int]] = {}
    for pair in pairs:
        partners.setdefault(pair.first, set()).add(pair.second)
        partners.setdefault(pair.second, set()).add(pair.first)
    best = 0
    for sequence in (live, live[::-1]):
        seen: set[int] = set()
        covered = 0
        for i in sequence:
            shared = sum(savings[frozenset((i, j))] for j in partners.get(i, set()) & seen)
            covered += sizes[i] - min(sizes[i], shared)
            seen.add(i)
        best = max(best, covered)
    return best


def _saving(pair: BufferPair, sizes: Sequence[int], order: WriteOrder | None, granule: int) -> int:
    first, second = sizes[pair.first], sizes[pair.second]
    usable = (c for c in pair.choices if c.usable(order))
    return max(_shared(choice, first, second, granule) for choice in usable)


def _shared(choice: OffsetRange, first: int, second: int, granule: int) -> int:
    low, high = align_up(choice.low, granule), align_down(choice.high, granule)
    if low > high:
        return 0
    # The overlap is largest when one buffer contains the other: deltas from 0 to first - second.
    delta = min(max(min(0, first - second), low), high)
    return max(0, min(first, delta + second) - max(0, delta))
