"""Pattern rewriting of a node together with the nodes that produce its operands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from smelt.codegen.passes.cleanup.dead_nodes import drop_dead_nodes
from smelt.codegen.passes.subgraphs import Names
from smelt.ir import Array, DType, Graph, Node, Quant, Value


class Matcher:
    """Producers and uses of the values that a rewrite rule inspects."""

    def __init__(self, graph: Graph) -> None:
        self._producers: dict[Value, Node] = {}
        self._results = set(graph.results)
        self._names = Names(graph)
        operands = (v for node in graph.nodes for v in node.inputs if v is not None)
        self._uses = Counter([*operands, *graph.results])

    def note(self, node: Node) -> None:
        """Record a node of the new graph as the producer of its outputs."""
        self._producers |= dict.fromkeys(node.outputs, node)

    def producer(self, value: Value | None) -> Node | None:
        """Return the node that computes a value, or None."""
        return None if value is None else self._producers.get(value)

    def single_use_producer(self, value: Value | None) -> Node | None:
        """Return the node that computes a value if it has one use and is no result of the graph."""
        if value is None or self._uses[value] != 1:
            return None
        return self.producer(value)

    def is_result(self, value: Value) -> bool:
        """Return whether a value is a result of the graph."""
        return value in self._results

    def constant(self, stem: str, data: Array, quant: Quant | None = None) -> Value:
        """Return a new constant with an unused name derived from `stem`."""
        return Value.constant(self._names.fresh(stem), data, quant)


RewriteRule = Callable[[Node, Matcher], Node | Value | None]
"""Returns the replacement of a node, or None to keep it.

The replacement is a node with the same outputs or an existing value.
"""


def replace_nodes(graph: Graph, rule: RewriteRule) -> Graph:
    """Apply a rule to each node in order, then drop nodes that have no users left."""
    matcher = Matcher(graph)

    def apply(node: Node) -> tuple[list[Node], list[Value]] | None:
        found = rule(node, matcher)
        if isinstance(found, Value):
            return [], [found]
        matcher.note(found or node)
        return None if found is None else ([found], list(found.outputs))

    return drop_dead_nodes(graph.rewrite(apply))


def is_float(value: Value) -> bool:
    """Return whether a value is float32, for which a pass may change the rounding."""
    return value.type.dtype is DType.FLOAT32
