"""The cheapest way to part nodes in two."""

from __future__ import annotations

from collections import deque


class Parting:
    """Nodes, a number each, that are to be parted into a first and a second side.

    The sums to pay are the capacities of a flow network, and the cheapest parting is its minimum
    cut (Ford and Fulkerson, 1956), found by E. A. Dinic's blocking flows (1970).
    """

    FIRST, SECOND = 0, 1
    """Nodes that are on these sides whatever it costs."""

    def __init__(self) -> None:
        self._arcs: list[list[int]] = [[], []]
        self._heads: list[int] = []
        self._left: list[int] = []

    def node(self) -> int:
        """One more node."""
        self._arcs.append([])
        return len(self._arcs) - 1

    def pay(self, a: int, b: int, price: int) -> None:
        """What it costs, at least 0, if `a` is on the first side and `b` on the second."""
        for tail, head, capacity in ((a, b, price), (b, a, 0)):
            self._arcs[tail].append(len(self._heads))
            self._heads.append(head)
            self._left.append(capacity)

    def cheapest(self) -> frozenset[int]:
        """The first side: of several cheapest ones that which all of them contain."""
        while True:
            levels = self._levels()
            if levels[self.SECOND] is None:
                return frozenset(n for n, level in enumerate(levels) if level is not None)
            self._block(levels)

    def _levels(self) -> list[int | None]:
        """How many arcs away from the first node each is, in what is left."""
        levels: list[int | None] = [None] * len(self._arcs)
        levels[self.FIRST] = 0
        queue = deque([self.FIRST])
        while queue:
            node = queue.popleft()
            for arc in self._arcs[node]:
                head = self._heads[arc]
                if self._left[arc] and levels[head] is None:
                    levels[head] = (levels[node] or 0) + 1
                    queue.append(head)
        return levels

    def _block(self, levels: list[int | None]) -> None:
        """Send as much as goes along shortest paths."""
        tried = [0] * len(self._arcs)
        path: list[int] = []
        while True:
            node = self._heads[path[-1]] if path else self.FIRST
            if node == self.SECOND:
                del path[self._send(path) :]
            elif (arc := self._next(node, levels, tried)) is not None:
                path.append(arc)
            elif path:
                path.pop()
                levels[node] = None
            else:
                return

    def _next(self, node: int, levels: list[int | None], tried: list[int]) -> int | None:
        """The arc of a shortest path on which something is left; those before it are exhausted."""
        arcs, deeper = self._arcs[node], (levels[node] or 0) + 1
        while tried[node] < len(arcs):
            arc = arcs[tried[node]]
            if self._left[arc] and levels[self._heads[arc]] == deeper:
                return arc
            tried[node] += 1
        return None

    def _send(self, path: list[int]) -> int:
        """Send what a path takes, and return which of its arcs is the first that is exhausted."""
        amount = min(self._left[arc] for arc in path)
        for arc in path:
            self._left[arc] -= amount
            self._left[arc ^ 1] += amount
        return next(i for i, arc in enumerate(path) if not self._left[arc])
