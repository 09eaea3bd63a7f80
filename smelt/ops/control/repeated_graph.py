"""Common description of While and Loop: the repeated graph, and the values passed to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from smelt.ir import Graph, Value


class Order(Enum):
    """The order in which the iterations of a loop read or write the slices of a tensor."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, kw_only=True)
class RepeatedGraph:
    """A node that repeats a graph: its graphs, and its operands by their roles.

    `test`, if any, is a graph that gets the carried values before each iteration; if its result is
    false, the loop ends. The inputs of `body` are `number` (the iteration's number) and `entries`.
    Its outputs are `continues` (whether there is another iteration) and `results`.
    """

    body: Graph
    carried: tuple[Value, ...]
    entries: tuple[Value, ...]
    results: tuple[Value, ...]
    limit: Value | None = None
    condition: Value | None = None
    scanned: tuple[Value, ...] = ()
    invariant: tuple[Value, ...] = ()
    trip_count: int | None = None
    scans: tuple[Order, ...] = ()
    stacks: tuple[Order, ...] = ()
    test: Graph | None = None
    number: Value | None = None
    continues: Value | None = None

    def forwarded_values(self, outputs: Sequence[Value]) -> list[tuple[Value, Value]]:
        """Return pairs of values that pass data on, as `Op.forwarded_values`.

        `outputs` are those of the node.
        """
        count = len(self.carried)
        tested = () if self.test is None else self.test.inputs
        pairs = [
            *zip((*self.scanned, *self.invariant), self.entries[count:], strict=True),
            *zip(self.results[count:], outputs[count:], strict=True),
        ]
        for values in (self.carried, self.results[:count]):
            for targets in (self.entries[:count], tested, outputs[:count]):
                if targets:
                    pairs += zip(values, targets, strict=True)
        return pairs
