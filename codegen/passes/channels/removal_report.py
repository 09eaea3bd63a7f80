"""What the passes take out of a network, for the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from smelt.codegen.passes.context import PassContext, Removal
from smelt.ir import Graph, Origin


@dataclass(frozen=True)
class Gone:
    """An operator of the model that no node computes any more, and the pass that took it."""

    origin: Origin
    operator: str
    by: str


class Removals:
    """Finds what goes while passes run; an observer of `run_passes`.

    Attributes:
        context: is given to the passes, which say by it which channels they remove.
        channels: those that are not computed, by layer.
        operators: those that nothing is left of.

    Args:
        graph: what the passes are run on.
        observe: is told of each pass too.
        granularity: of the channels that go.
    """

    def __init__(
        self,
        graph: Graph,
        observe: Callable[[str, Graph], None] | None,
        granularity: int = 1,
    ) -> None:
        self.channels: list[Removal] = []
        self.context = PassContext(granularity, self.channels.extend)
        self.operators: list[Gone] = []
        self._graph = graph
        self._observe = observe

    def __call__(self, name: str, graph: Graph) -> None:
        """A pass has run."""
        left = {node.origin for node in graph.nodes}
        before = {node.origin: node for node in self._graph.nodes}
        self.operators += [
            Gone(origin, node.op.name, name)
            for origin, node in before.items()
            if origin not in left
        ]
        self._graph = graph
        if self._observe is not None:
            self._observe(name, graph)
