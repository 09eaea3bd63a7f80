"""What the passes take out of a network, for the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smelt.codegen.passes.channels import Removal, drop_channels, plan_channels
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
        channels: those that are not computed, by layer.
        operators: those that nothing is left of.

    Args:
        graph: what the passes are run on.
        observe: is told of each pass too.
        granularity: of the channels that go, as `run_passes` has it.
    """

    def __init__(
        self,
        graph: Graph,
        observe: Callable[[str, Graph], None] | None,
        granularity: int = 1,
    ) -> None:
        self.channels: Sequence[Removal] = ()
        self.operators: list[Gone] = []
        self._graph = graph
        self._observe = observe
        self._granularity = granularity

    def __call__(self, name: str, graph: Graph) -> None:
        """A pass has run."""
        if name == drop_channels.__name__:
            self.channels = plan_channels(self._graph, self._granularity).removals()
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
