"""Buffers that are joined: they get one offset, because they may lie in place of one another.

Joined buffers take less room, but they are harder to lay out: while only the smaller one is live,
other buffers must fit into the rest of the room. Therefore buffers are joined only if they are live
in a step in which more than the goal is live.
"""

from collections.abc import Sequence

from smelt.codegen.arena.bound import live_bytes
from smelt.codegen.arena.conflict import Arena
from smelt.codegen.arena.first_fit import PlacementConstraint


def join(arena: Arena, links: Sequence[Sequence[PlacementConstraint]], goal: int) -> list[int]:
    """Return the leader of each buffer: the one whose offset it gets, or itself.

    Pairs are joined in the order of what they can share.

    Args:
        arena: The buffers.
        links: For each buffer, the constraints with buffers that it may share bytes with.
        goal: Bytes.
    """
    leaders = list(range(len(arena.buffers)))
    groups = [{i} for i in leaders]
    shared = _shared_above(arena, goal)
    for first, second in sorted(shared, key=lambda pair: (-shared[pair], pair)):
        group, other = groups[leaders[first]], groups[leaders[second]]
        if all(other.isdisjoint(_never_equal(arena, links, i)) for i in group):
            for i in other:
                leaders[i] = leaders[first]
            group |= other
    return leaders


def _shared_above(arena: Arena, goal: int) -> dict[tuple[int, int], int]:
    """Return the bytes that pairs can share where more than `goal` bytes are live.

    They are summed over the steps at which spans begin. Buffers with fixed offsets are left out.
    """
    shared: dict[tuple[int, int], int] = {}
    if not arena.in_place:
        return shared
    free = {i for i in arena.in_place if arena.buffers[i].offset is None}
    _, totals = live_bytes(arena)
    for total, (_, live) in zip(totals.tolist(), arena.live_at_starts(), strict=True):
        for first in free & live.keys() if total > goal else ():
            for second in arena.in_place[first] & free & live.keys():
                a, b = live[first], live[second]
                common = min(a.high, b.high) - max(a.low, b.low)
                if first < second and common > 0:
                    shared[first, second] = shared.get((first, second), 0) + common
    return shared


def _never_equal(arena: Arena, links: Sequence[Sequence[PlacementConstraint]], i: int) -> set[int]:
    """Return the buffers that cannot have the same offset as buffer `i`."""
    gaps = ((link.other, gap) for link in links[i] for gap in link.gaps)
    return {other for other, (low, high) in gaps if low < 0 < high}.union(arena.apart[i])
