"""Exact search for a layout within a given number of bytes.

This is a depth-first branch and bound over the choices of the pairs, as in disjunctive scheduling
(Carlier and Pinson, 1989). Every choice is a range of allowed differences between two offsets. Each
buffer has an interval of offsets that are still possible. The lower ends of all intervals are a
solution as soon as they violate no pair.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from smelt.codegen.arena.conflict import Arena, BufferPair, OffsetRange, align_down, align_up


@dataclass(slots=True)
class _SearchNode:
    low: list[int]
    high: list[int]
    choices: list[tuple[OffsetRange, ...]]

    def child(self, pair: int, choice: OffsetRange) -> "_SearchNode":
        choices = self.choices.copy()
        choices[pair] = (choice,)
        return _SearchNode(self.low.copy(), self.high.copy(), choices)


@dataclass
class ExactSearch:
    """The search in one arena. `checks` counts the pairs examined."""

    arena: Arena
    checks: int = 0

    @cached_property
    def _pairs(self) -> tuple[BufferPair, ...]:
        return tuple(self.arena.pairs())

    @cached_property
    def _touching(self) -> list[list[int]]:
        """The indices of the pairs that each buffer is part of."""
        touching: list[list[int]] = [[] for _ in self.arena.buffers]
        for p, pair in enumerate(self._pairs):
            touching[pair.first].append(p)
            touching[pair.second].append(p)
        return touching

    def within(self, limit: int, budget: int) -> tuple[list[int] | None, bool]:
        """Search for offsets that need at most `limit` bytes (whole granules).

        Args:
            limit: Bytes.
            budget: The largest number of pair checks. The search does not start if this is less
                than the number of pairs.

        Returns:
            The offsets or None, and whether the result is final. None with True means that there is
            no such layout; None with False means that the budget was spent.
        """
        if budget < self.arena.pair_count:
            return None, False
        stop = self.checks + budget
        root = self._root(limit)
        if any(low > high for low, high in zip(root.low, root.high, strict=True)):
            return None, True
        stack: list[tuple[_SearchNode, Iterable[int]]] = [(root, range(len(self._pairs)))]
        while stack:
            node, fresh = stack.pop()
            if not self._propagate(node, fresh):
                continue
            pair = self._branching_pair(node)
            if pair is None:
                return node.low, True
            if self.checks > stop:
                return None, False
            stack += [
                (node.child(pair, choice), (pair,)) for choice in self._cheapest_last(node, pair)
            ]
        return None, True

    def _root(self, limit: int) -> _SearchNode:
        buffers = self.arena.buffers
        low = [b.offset or 0 for b in buffers]
        high = [align_down(limit - b.size, b.alignment) for b in buffers]
        for i, b in enumerate(buffers):
            if b.offset is not None:
                high[i] = min(high[i], b.offset)
        return _SearchNode(low, high, self._root_choices())

    def _root_choices(self) -> list[tuple[OffsetRange, ...]]:
        """Return all choices, but only one for two interchangeable buffers, to break symmetry."""
        special = {i for pair in self.arena.sharing for i in (pair.first, pair.second)}
        kinds = [
            (i,) if i in special or b.offset is not None else (b.size, b.alignment, b.live)
            for i, b in enumerate(self.arena.buffers)
        ]
        return [
            pair.ranges[-1:] if kinds[pair.first] == kinds[pair.second] else pair.ranges
            for pair in self._pairs
        ]

    def _propagate(self, node: _SearchNode, fresh: Iterable[int]) -> bool:
        """Narrow the offsets until nothing changes; return False if a pair has no choice left."""
        queue = deque(fresh)
        waiting = set(queue)
        while queue:
            p = queue.popleft()
            waiting.discard(p)
            changed = self._narrow(node, p)
            if changed is None:
                return False
            for q in changed:
                if q not in waiting:
                    waiting.add(q)
                    queue.append(q)
        return True

    def _narrow(self, node: _SearchNode, p: int) -> list[int] | None:
        """Apply one pair; return the pairs to check again, or None on a contradiction."""
        self.checks += 1
        pair, low, high = self._pairs[p], node.low, node.high
        i, j = pair.first, pair.second
        least, most = low[j] - high[i], high[j] - low[i]
        left = tuple(c for c in node.choices[p] if c.low <= most and c.high >= least)
        if not left:
            return None
        node.choices[p] = left
        again: list[int] = []
        at_least, at_most = min(c.low for c in left), max(c.high for c in left)
        a, b = self.arena.buffers[i].alignment, self.arena.buffers[j].alignment
        for k, new_low, new_high in (
            (j, align_up(low[i] + at_least, b), align_down(high[i] + at_most, b)),
            (i, align_up(low[j] - at_most, a), align_down(high[j] - at_least, a)),
        ):
            if new_low > low[k] or new_high < high[k]:
                low[k], high[k] = max(low[k], new_low), min(high[k], new_high)
                if low[k] > high[k]:
                    return None
                again += self._touching[k]
        return again

    def _branching_pair(self, node: _SearchNode) -> int | None:
        """Return the violated pair with the fewest choices, then the largest, or None."""
        self.checks += len(self._pairs)
        best, best_key = None, (0, 0)
        for p, pair in enumerate(self._pairs):
            choices = node.choices[p]
            delta = node.low[pair.second] - node.low[pair.first]
            if any(c.low <= delta <= c.high for c in choices):
                continue
            sizes = self.arena.buffers[pair.first].size + self.arena.buffers[pair.second].size
            key = (len(choices), -sizes)
            if best is None or key < best_key:
                best, best_key = p, key
        return best

    def _cheapest_last(self, node: _SearchNode, p: int) -> list[OffsetRange]:
        """Return the pair's choices; the last one, explored first, raises an offset least."""
        pair = self._pairs[p]
        delta = node.low[pair.second] - node.low[pair.first]
        return sorted(node.choices[p], key=lambda c: min(delta - c.low, c.high - delta))
