"""First fit: buffers are placed one by one, each at the lowest free offset."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from smelt.codegen.arena.conflict import Arena, Gaps, align_up


@dataclass(frozen=True, slots=True)
class PlacementConstraint:
    """The offsets that a placed buffer forbids for another one that it may share bytes with.

    Attributes:
        other: The index of the placed buffer.
        gaps: Forbidden open intervals, relative to its offset.
    """

    other: int
    gaps: Gaps


@dataclass(slots=True)
class FirstFit:
    """First fit on one arena.

    Attributes:
        arena: The buffers.
        links: For each buffer, the constraints with buffers that it may share bytes with.
        layouts: The number of layouts made so far.
    """

    arena: Arena
    links: list[list[PlacementConstraint]]
    layouts: int = 0

    @classmethod
    def of(cls, arena: Arena) -> "FirstFit":
        """Build the links between the buffers of `arena`."""
        links: list[list[PlacementConstraint]] = [[] for _ in arena.buffers]
        for pair in arena.sharing:
            mirrored = tuple((-high, -low) for low, high in reversed(pair.gaps))
            links[pair.second].append(PlacementConstraint(pair.first, pair.gaps))
            links[pair.first].append(PlacementConstraint(pair.second, mirrored))
        return cls(arena, links)

    @property
    def cost(self) -> int:
        """The approximate number of elementary steps of one layout."""
        return len(self.arena.buffers) + 2 * self.arena.pair_count

    def place(self, sequence: Sequence[int], *, in_place: bool) -> list[int]:
        """Return the offset of each buffer; `in_place` prefers sharing to a low offset."""
        self.layouts += 1
        buffers = self.arena.buffers
        sizes = [b.size for b in buffers]
        offsets = [-1 if b.offset is None else b.offset for b in buffers]
        for i in sequence:
            if offsets[i] >= 0:
                continue
            size = sizes[i]
            forbidden = [
                (base - size, base + sizes[other])
                for other in self.arena.apart[i]
                if (base := offsets[other]) >= 0
            ]
            for link in self.links[i]:
                base = offsets[link.other]
                if base >= 0:
                    forbidden += [(base + low, base + high) for low, high in link.gaps]
            forbidden.sort()
            alignment = buffers[i].alignment
            lowest = lowest_free(forbidden, alignment)
            if in_place and (partners := self.arena.in_place.get(i)):
                wanted = sorted(offsets[other] for other in partners)
                lowest = next(_free(wanted, forbidden, alignment), lowest)
            offsets[i] = lowest
        return offsets

    def improve(
        self, sequence: Sequence[int], *, in_place: bool, goal: int, budget: int
    ) -> list[int]:
        """Improve offsets by local changes of `sequence` until `goal` bytes or `budget` is reached.

        Each round moves one to three buffers, mostly ones that end above the goal or conflict with
        one that does. A change is kept if it is not worse: fewer bytes, then fewer bytes above the
        goal. The random numbers have a fixed seed, so the result is deterministic.
        """
        dice = random.Random(0)
        best_sequence, best = list(sequence), self.place(sequence, in_place=in_place)
        best_cost = self._cost_of(best, goal)
        for _ in range(budget // self.cost):
            if best_cost[0] <= goal:
                break
            trial = list(best_sequence)
            high = self._in_the_way(best, goal)
            for _ in range(1 + int(3 * dice.random())):
                source = high if dice.random() < _FOCUS else best_sequence
                moved = source[int(len(source) * dice.random())]
                trial.remove(moved)
                trial.insert(int((len(trial) + 1) * dice.random()), moved)
            offsets = self.place(trial, in_place=in_place)
            cost = self._cost_of(offsets, goal)
            if cost <= best_cost:
                best_sequence, best, best_cost = trial, offsets, cost
        return best

    def _cost_of(self, offsets: list[int], goal: int) -> tuple[int, int]:
        ends = (o + b.size for o, b in zip(offsets, self.arena.buffers, strict=True))
        return self.arena.bytes_of(offsets), sum(end - goal for end in ends if end > goal)

    def _in_the_way(self, offsets: list[int], goal: int) -> list[int]:
        """Return the buffers that end above `goal` and those that are live together with them."""
        sizes = (b.size for b in self.arena.buffers)
        above = [i for i, size in enumerate(sizes) if offsets[i] + size > goal]
        around = {link.other for i in above for link in self.links[i]}
        around.update(other for i in above for other in self.arena.apart[i])
        return above + sorted(around.difference(above))


_FOCUS = 0.75
"""Probability that a local change moves a buffer that ends above the goal or conflicts with one."""


def sequences(arena: Arena) -> Iterator[list[int]]:
    """Yield the placement orders worth trying, the most promising first."""
    buffers = arena.buffers
    everything = range(len(buffers))

    def life(i: int) -> int:
        return buffers[i].end - buffers[i].start

    yield sorted(everything, key=lambda i: (-buffers[i].size, buffers[i].start))
    yield sorted(everything, key=lambda i: (-buffers[i].size * life(i), buffers[i].start))
    yield sorted(everything, key=lambda i: (-life(i), -buffers[i].size))
    yield sorted(everything, key=lambda i: (buffers[i].start, -buffers[i].size))
    yield sorted(everything, key=lambda i: (-buffers[i].end, -buffers[i].size))
    yield _by_pressure(arena)


def _by_pressure(arena: Arena) -> list[int]:
    """Order by the step with the most live bytes that each buffer is live at, then by size."""
    buffers = arena.buffers
    most = [(0, 0)] * len(buffers)
    for step, live in arena.live_at_starts():
        pressure = -sum(span.high - span.low for span in live.values()), step
        for i in live:
            most[i] = min(most[i], pressure)
    return sorted(range(len(buffers)), key=lambda i: (most[i], -buffers[i].size))


def lowest_free(forbidden: list[tuple[int, int]], alignment: int, floor: int = 0) -> int:
    """Return the lowest aligned offset, not below `floor`, outside of open intervals.

    `forbidden` has these intervals in ascending order.
    """
    offset = align_up(floor, alignment)
    for low, high in forbidden:
        if low >= offset:
            break
        if high > offset:
            offset = align_up(high, alignment)
    return offset


def _free(wanted: list[int], forbidden: list[tuple[int, int]], alignment: int) -> Iterator[int]:
    for offset in wanted:
        aligned = offset >= 0 and offset % alignment == 0
        if aligned and not any(low < offset < high for low, high in forbidden):
            yield offset
