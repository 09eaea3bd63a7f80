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

from smelt.codegen.arena.bound import pressure
from smelt.codegen.arena.conflict import Arena
from smelt.codegen.arena.first_fit import PlacementConstraint, lowest_free

Priorities = npt.NDArray[np.float64]

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

_BLAME = 2.0
"""How much the priority of the highest buffer grows at most."""

_PATIENCE = 25
"""Layouts after which the improvement returns to the best priorities."""

_FEWEST = 20
"""Layouts that a search makes whatever they cost: less than 0.1 s each for 4,000 buffers."""

_PLACED = 1 << 62
"""The key of placed buffers, which is larger than all others."""


class Skyline:
    """Skyline layouts of one arena. `layouts` counts those made so far."""

    def __init__(self, arena: Arena, links: Sequence[Sequence[PlacementConstraint]]) -> None:
        self.arena = arena
        self.layouts = 0
        buffers = arena.buffers
        self._sizes = np.array([b.size for b in buffers], np.int64)
        self._apart = [np.array(others, np.intp) for others in arena.apart]
        self._links = [list(constraints) for constraints in links]
        for i, buffer in enumerate(buffers):
            if buffer.offset is not None:
                for j in arena.apart[i]:
                    gaps = ((-buffers[j].size, buffer.size),)
                    self._links[j].append(PlacementConstraint(i, gaps))

    def search(self, goal: int, budget: int) -> Iterator[list[int]]:
        """Yield the offsets of better and better layouts.

        Args:
            goal: The bytes at which the search stops.
            budget: The number of elementary steps after which it stops. It makes at least
                `_FEWEST` layouts.
        """
        dice = random.Random(0)
        count = len(self.arena.buffers)
        steps = 200 * count + count * count // 64 + self.arena.pair_count // 4
        first = self._first_priorities()
        best = priorities = first[0]
        least: int | None = None
        for turn in range(max(_FEWEST, budget // steps)):
            if turn < len(first):
                priorities = first[turn]
            elif (turn - len(first)) % _PATIENCE == 0:
                priorities = best
            offsets = self._place(priorities)
            ends = self._sizes + offsets
            top = int(ends.max())
            if least is None or top <= least:
                if least is None or top < least:
                    yield offsets
                best, least = priorities, top
            if top <= goal:
                return
            high = ends > goal
            blame = np.zeros(count)
            blame[high] = [_BLAME * dice.random() for _ in range(int(high.sum()))]
            priorities = priorities + blame * (ends - goal) / (top - goal)

    def _first_priorities(self) -> list[Priorities]:
        buffers = self.arena.buffers
        life = np.log2([b.end - b.start for b in buffers])
        size = np.log2(self._sizes + 1)
        most = pressure(self.arena)
        fraction = np.array(most) / max(1, *most)
        return [a * life + b * size + c * fraction for a, b, c in _WEIGHTS]

    def _place(self, priorities: Priorities) -> list[int]:
        """Return the offset of each buffer.

        The buffer with the smallest key is next. A key is the lowest offset that the buffer can
        have, times `factor`, plus its rank by priority. Buffers that can lie in place of a placed
        one have the first ranks.
        """
        self.layouts += 1
        buffers = self.arena.buffers
        count = len(buffers)
        factor = 2 * count
        ranks = np.empty(count, np.int64)
        ranks[np.argsort(-priorities, kind="stable")] = np.arange(count, factor)
        keys = ranks.copy()
        offsets = [-1 if b.offset is None else b.offset for b in buffers]
        keys[[b.offset is not None for b in buffers]] = _PLACED
        left = offsets.count(-1)
        while left:
            i = int(keys.argmin())
            floor = int(keys[i]) // factor
            offset = self._lowest(i, floor, offsets)
            if offset > floor:
                keys[i] = offset * factor + ranks[i]
                continue
            offsets[i] = offset
            keys[i] = _PLACED
            left -= 1
            near = self._apart[i]
            above = (offset + buffers[i].size) * factor + ranks[near]
            keys[near] = np.maximum(keys[near], above)
            for j in self.arena.in_place.get(i, ()):
                if offsets[j] < 0 and ranks[j] >= count:
                    ranks[j] -= count
                    keys[j] -= count
        return offsets

    def _lowest(self, i: int, floor: int, offsets: Sequence[int]) -> int:
        """Return the lowest possible offset of buffer `i` that is not below `floor`."""
        forbidden = [
            (offsets[link.other] + low, offsets[link.other] + high)
            for link in self._links[i]
            if offsets[link.other] >= 0
            for low, high in link.gaps
        ]
        forbidden.sort()
        return lowest_free(forbidden, self.arena.buffers[i].alignment, floor)
