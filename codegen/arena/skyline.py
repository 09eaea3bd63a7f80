"""Skyline layouts: buffers are placed at ascending offsets.

The next buffer is always one that can lie lowest, above all placed buffers that it may not share
bytes with. Sekiyama, Imai, Negishi and Kawachiya, "Profile-guided memory optimization for deep
neural networks" (2018), place buffers in this order; of several, they take the one with the longest
lifetime. Here priorities decide. They are improved as in Joslin and Clements, "Squeaky wheel
optimization" (1999): after each layout, the buffers that end too high get a higher priority.
"""

import random
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from smelt.codegen.arena.bound import IntArray, pressure
from smelt.codegen.arena.conflict import FAR, Arena
from smelt.codegen.arena.first_fit import PlacementConstraint, lowest_free

Priorities = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]

_WEIGHTS = (
    (1.0, 0.0, 0.0),
    (1.0, 0.5, 0.0),
    (1.0, 1.0, 0.0),
    (1.0, 0.0, 1e3),
    (1.0, 0.5, 1e3),
    (1.0, 1.0, 1e3),
    (1.0, 0.25, 20.0),
)
"""Weights of the first priorities: of the logarithms of lifetime and size, and of the pressure.

The pressure of a buffer is the most live bytes in its lifetime, as a fraction of the most of all.
"""

_BLAME, _BLAME_OF_MANY = (2.0, 1.0), (1.0,)
"""How much the priority of the highest buffer grows at most, in one series of layouts and the next.

The second ones are for so many buffers that the budget permits only few layouts.
"""

_PATIENCE = 25
"""Layouts after which the improvement returns to the best priorities."""

_FEWEST = 20
"""Layouts that a search makes whatever they cost: less than 0.1 s each for 4,000 buffers."""

_MOST = 60
"""Layouts that it makes, whatever they cost, while no layout is close to the goal."""

_CLOSE = 1.04
"""A layout is close to the goal if it needs at most this many times the bytes."""

_PLACED = 1 << 62
"""The key of placed buffers, which is larger than all others."""

_Floors = tuple[IndexArray, int | IntArray]
"""Buffers that must lie above a placed one, and by how many bytes above its offset."""


class Skyline:
    """Skyline layouts of one arena. `layouts` counts those made so far.

    Joined buffers (`join.py`) have the same leader and get its offset. Only leaders are placed,
    with the largest size and alignment of their group, and with the constraints of all its buffers.
    """

    def __init__(
        self,
        arena: Arena,
        links: Sequence[Sequence[PlacementConstraint]],
        leaders: Sequence[int],
    ) -> None:
        self.arena = arena
        self.layouts = 0
        buffers = arena.buffers
        self._leaders = np.array(leaders, np.intp)
        self._sizes = self._most([b.size for b in buffers])
        self._alignments = self._most([b.alignment for b in buffers]).tolist()
        self._links = self._links_of_leaders(links)
        floors: list[list[_Floors]] = [[] for _ in buffers]
        for i, leader in enumerate(leaders):
            floors[leader] += self._floors_above(i, links[i])
        self._floors = {i: _merged(parts) for i, parts in enumerate(floors) if parts}

    def _most(self, values: Sequence[int]) -> IntArray:
        """Return one value for each buffer: for a leader, the largest of its group."""
        most = np.array(values, np.int64)
        np.maximum.at(most, self._leaders, most.copy())
        return most

    def _floors_above(self, i: int, links: Sequence[PlacementConstraint]) -> Iterator[_Floors]:
        """Yield the leaders that must lie above buffer `i` if they are placed after it.

        A buffer never lies below those placed before it. Therefore it lies above every forbidden
        gap that begins below the offset of `i`.
        """
        apart = np.array(self.arena.apart[i], np.intp)
        yield self._leaders[apart], self.arena.buffers[i].size
        gaps = [(link.other, -low) for link in links for low, high in link.gaps if high > 0]
        if gaps:
            others, heights = np.array(gaps, np.int64).T
            yield self._leaders[others], heights

    def _links_of_leaders(
        self, links: Sequence[Sequence[PlacementConstraint]]
    ) -> list[list[PlacementConstraint]]:
        """Return for each leader the constraints that `_floors_above` does not cover.

        These are gaps that do not begin below the other buffer's offset, and all gaps around
        buffers with fixed offsets: others may be placed below these.
        """
        buffers = self.arena.buffers
        leaders: list[int] = self._leaders.tolist()
        left: list[list[PlacementConstraint]] = [[] for _ in buffers]
        for i, buffer in enumerate(buffers):
            for link in links[i]:
                fixed = buffers[link.other].offset is not None
                if gaps := tuple(gap for gap in link.gaps if fixed or gap[0] >= 0):
                    left[leaders[i]].append(PlacementConstraint(leaders[link.other], gaps))
            for j in self.arena.apart[i] if buffer.offset is not None else ():
                gap = -buffers[j].size, buffer.size
                left[leaders[j]].append(PlacementConstraint(i, (gap,)))
        return left

    def search(self, goal: int, budget: int) -> Iterator[list[int]]:
        """Yield the offsets of better and better layouts.

        Args:
            goal: The bytes at which the search stops.
            budget: The number of elementary steps after which it stops. It makes at least
                `_FEWEST` layouts, and `_MOST` if these are not close to the goal.
        """
        dice = random.Random(0)
        count = len(self.arena.buffers)
        steps = 200 * count + count * count // 64 + self.arena.pair_count // 4
        first = self._first_priorities()
        best = priorities = first[0]
        least, turns = FAR, max(_FEWEST, budget // steps)
        shares = _BLAME if turns > _FEWEST else _BLAME_OF_MANY
        for turn in range(max(_MOST, turns)):
            if turn >= turns and least <= _CLOSE * goal:
                return
            if turn < len(first):
                priorities = first[turn]
            elif (turn - len(first)) % _PATIENCE == 0:
                priorities = best
            offsets = self._place(priorities)
            ends = self._sizes + offsets
            top = int(ends.max())
            if top <= least:
                if top < least:
                    yield offsets
                best, least = priorities, top
            if top <= goal:
                return
            high = ends > goal
            blame = np.zeros(count)
            share = shares[max(turn - len(first), 0) // _PATIENCE % len(shares)]
            blame[high] = [share * dice.random() for _ in range(int(high.sum()))]
            priorities = priorities + blame * (ends - goal) / (top - goal)

    def _first_priorities(self) -> list[Priorities]:
        buffers = self.arena.buffers
        last = self._most([b.end for b in buffers])
        first = -self._most([-b.start for b in buffers])
        life = np.log2(last - first)
        size = np.log2(self._sizes + 1)
        most = self._most(pressure(self.arena))
        fraction = most / max(1, most.max())
        return [a * life + b * size + c * fraction for a, b, c in _WEIGHTS]

    def _place(self, priorities: Priorities) -> list[int]:
        """Return the offset of each buffer.

        The leader with the smallest key is next. A key is the lowest offset that the leader can
        have, times `count`, plus its rank by priority.
        """
        self.layouts += 1
        buffers = self.arena.buffers
        count = len(buffers)
        ranks = np.empty(count, np.int64)
        ranks[np.argsort(-priorities, kind="stable")] = np.arange(count)
        keys = ranks.copy()
        keys[self._leaders != np.arange(count)] = _PLACED
        keys[[b.offset is not None for b in buffers]] = _PLACED
        offsets = [-1 if b.offset is None else b.offset for b in buffers]
        while (key := keys.item(i := int(keys.argmin()))) != _PLACED:
            floor = key // count
            offset = self._lowest(i, floor, offsets)
            if offset > floor:
                keys[i] = offset * count + ranks[i]
                continue
            offsets[i] = offset
            keys[i] = _PLACED
            near, heights = self._floors[i]
            np.maximum.at(keys, near, (offset + heights) * count + ranks[near])
        return [offsets[leader] for leader in self._leaders.tolist()]

    def _lowest(self, i: int, floor: int, offsets: Sequence[int]) -> int:
        """Return the lowest possible offset of leader `i` that is not below `floor`."""
        forbidden = [
            (offsets[link.other] + low, offsets[link.other] + high)
            for link in self._links[i]
            if offsets[link.other] >= 0
            for low, high in link.gaps
        ]
        forbidden.sort()
        return lowest_free(forbidden, self._alignments[i], floor)


def _merged(parts: Sequence[_Floors]) -> _Floors:
    if len(parts) == 1:
        return parts[0]
    near, heights = zip(*(np.broadcast_arrays(*part) for part in parts), strict=True)
    return np.concatenate(near), np.concatenate(heights)
