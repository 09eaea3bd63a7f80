"""Record of the operators and channels that passes remove, for the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from smelt.codegen.passes.context import PassContext, Removal
from smelt.ir import Graph, Origin


@dataclass(frozen=True)
class RemovedOperator:
    """An operator of the model that has no nodes left, and the pass that removed it."""

    origin: Origin
    operator: str
    by: str


class RemovalReport:
    """An observer for `run_passes` that records what is removed.

    Attributes:
        context: The context to run the passes with; it records the removed channels.
        channels: Removed channels by layer.
        operators: Operators that have no nodes left.

    Args:
        graph: The graph before the passes run.
        observe: Called after each pass too.
        granularity: Channels are removed in multiples of this.
    """

    def __init__(
        self,
        graph: Graph,
        observe: Callable[[str, Graph], None] | None,
        granularity: int = 1,
    ) -> None:
        self.channels: list[Removal] = []
        self.context = PassContext(granularity, self.channels.extend)
        self.operators: list[RemovedOperator] = []
        self._graph = graph
        self._observe = observe

    def __call__(self, name: str, graph: Graph) -> None:
        """Record the operators that the pass `name` removed."""
        left = {node.origin for node in graph.nodes}
        before = {node.origin: node for node in self._graph.nodes}
        self.operators += [
            RemovedOperator(origin, node.op.name, name)
            for origin, node in before.items()
            if origin not in left
        ]
        self._graph = graph
        if self._observe is not None:
            self._observe(name, graph)
