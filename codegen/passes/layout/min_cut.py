"""Minimum cuts: binary decisions with a cost where connected vertices decide differently."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

UNCUTTABLE = 1 << 60
"""Capacity of an edge that no minimum cut contains."""


@dataclass
class CutProblem:
    """A flow network with vertices numbered in the order in which they are added.

    Solved by E. A. Dinic's max-flow algorithm, "Algorithm for solution of a problem of maximum flow
    in networks with power estimation" (1970).
    """

    SOURCE = 0
    SINK = 1
    _edges: list[list[int]] = field(default_factory=lambda: [[], []])
    _heads: list[int] = field(default_factory=list[int])
    _capacity: list[int] = field(default_factory=list[int])

    def vertex(self) -> int:
        """Add a vertex and return its number."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """Add a cost of `capacity` if `tail` is on the source side and `head` on the sink side."""
        for start, end, size in ((tail, head, capacity), (head, tail, 0)):
            self._edges[start].append(len(self._heads))
            self._heads.append(end)
            self._capacity.append(size)

    def sink_side(self) -> set[int]:
        """Return the sink side of a minimum cut: the smallest of all minimum cuts."""
        levels = self._levels()
        while self.SINK in levels:
            self._block(levels)
            levels = self._levels()
        found, pending = {self.SINK}, [self.SINK]
        while pending:
            for edge in self._edges[pending.pop()]:
                vertex = self._heads[edge]
                if self._capacity[edge ^ 1] and vertex not in found:
                    found.add(vertex)
                    pending.append(vertex)
        return found

    def _levels(self) -> dict[int, int]:
        """Return the distance from the source of each vertex with residual capacity."""
        levels, pending = {self.SOURCE: 0}, deque([self.SOURCE])
        while pending:
            vertex = pending.popleft()
            for edge in self._edges[vertex]:
                head = self._heads[edge]
                if self._capacity[edge] and head not in levels:
                    levels[head] = levels[vertex] + 1
                    pending.append(head)
        return levels

    def _block(self, levels: dict[int, int]) -> None:
        """Add a blocking flow along shortest paths, so that each has a saturated edge."""
        untried = [list(edges) for edges in self._edges]
        path: list[int] = []
        while True:
            vertex = self._heads[path[-1]] if path else self.SOURCE
            if vertex == self.SINK:
                amount = min(self._capacity[edge] for edge in path)
                for edge in path:
                    self._capacity[edge] -= amount
                    self._capacity[edge ^ 1] += amount
                path.clear()
            elif untried[vertex]:
                edge = untried[vertex][-1]
                head = self._heads[edge]
                if self._capacity[edge] and levels.get(head) == levels[vertex] + 1:
                    path.append(edge)
                else:
                    untried[vertex].pop()
            elif path:
                untried[self._heads[path.pop() ^ 1]].pop()
            else:
                return
