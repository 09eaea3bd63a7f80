"""Which layers a GPU computes, and which stay on the CPU beside it."""

from __future__ import annotations

from collections.abc import Callable

from smelt.ir import Graph, Node


def stays_on_cpu(graph: Graph) -> Callable[[Node], bool]:
    """Whether a node must stay on the CPU.

    Only the outermost graph is dispatched: branches and loops are the CPU's, and so is a network
    whose sizes are known at run time only.
    """
    if graph.lengths:
        return lambda _: True
    outermost = frozenset(graph.nodes)
    return lambda node: node not in outermost
