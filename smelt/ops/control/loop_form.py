"""What While and Loop have in common: how a graph is repeated, and what is passed to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from smelt.ir import Graph, Value


class Order(Enum):
    """The order in which a loop's turns take or make the slices of a tensor."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, kw_only=True)
class LoopForm:
    """A node that repeats a graph: its operands by their roles, and its graphs.

    `test`, if any, says before every turn whether it takes place; it is passed what is carried.
    `number`, `entries` and `again`, `results` are the inputs and outputs of `body`: the turn's
    number and what it is passed; whether there is another turn, and what it makes.
    """

    body: Graph
    carried: tuple[Value, ...]
    entries: tuple[Value, ...]
    results: tuple[Value, ...]
    limit: Value | None = None
    condition: Value | None = None
    scanned: tuple[Value, ...] = ()
    invariant: tuple[Value, ...] = ()
    turns: int | None = None
    scans: tuple[Order, ...] = ()
    stacks: tuple[Order, ...] = ()
    test: Graph | None = None
    number: Value | None = None
    again: Value | None = None

    def handed_over(self, outputs: Sequence[Value]) -> list[tuple[Value, Value]]:
        """What becomes what: operands and results of the body, entries and the node's `outputs`."""
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
