"""Rewriting a node together with the ones that feed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from smelt.codegen.passes.cleanup.dead_nodes import drop_dead_nodes
from smelt.codegen.passes.subgraphs import Names
from smelt.ir import Array, DType, Graph, Node, Quant, Value


class Matcher:
    """What a rule may ask of the values that a node reads."""

    def __init__(self, graph: Graph) -> None:
        self._producers: dict[Value, Node] = {}
        self._results = set(graph.results)
        self._names = Names(graph)
        operands = (v for node in graph.nodes for v in node.inputs if v is not None)
        self._uses = Counter([*operands, *graph.results])

    def note(self, node: Node) -> None:
        """A node of the new graph."""
        self._producers |= dict.fromkeys(node.outputs, node)

    def producer(self, value: Value | None) -> Node | None:
        """The node that computes a value."""
        return None if value is None else self._producers.get(value)

    def sole(self, value: Value | None) -> Node | None:
        """The node that computes a value, if that value is used once and is no result."""
        if value is None or self._uses[value] != 1:
            return None
        return self.producer(value)

    def is_result(self, value: Value) -> bool:
        """Whether a value is a result of the graph."""
        return value in self._results

    def constant(self, stem: str, data: Array, quant: Quant | None = None) -> Value:
        """A new constant named after another."""
        return Value.constant(self._names.fresh(stem), data, quant)


RewriteRule = Callable[[Node, Matcher], Node | Value | None]
"""What to put for a node: another one with its outputs, or a value that is there, or None."""


def replace_nodes(graph: Graph, rule: RewriteRule) -> Graph:
    """Apply a rule to each node in order, and drop the nodes that this leaves without a user."""
    matcher = Matcher(graph)

    def apply(node: Node) -> tuple[list[Node], list[Value]] | None:
        found = rule(node, matcher)
        if isinstance(found, Value):
            return [], [found]
        matcher.note(found or node)
        return None if found is None else ([found], list(found.outputs))

    return drop_dead_nodes(graph.rewrite(apply))


def is_float(value: Value) -> bool:
    """Whether a value is of float32, the type in which a pass may round differently."""
    return value.type.dtype is DType.FLOAT32
