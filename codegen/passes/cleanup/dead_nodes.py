"""Removal of nodes without effect and of nodes with unused results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from smelt.codegen.passes.context import DEFAULT, PassContext
from smelt.codegen.passes.loops import is_read
from smelt.codegen.passes.subgraphs import with_graphs
from smelt.ir import Graph, Node, Rewrite, Value

T = TypeVar("T")


def drop_identities(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Remove operators that return their operand unchanged.

    These are reshapes to the same shape, transpositions in order, empty pads, slices of everything,
    requantizations to the same type, pools of single elements and concatenations of one tensor. A
    node whose output is a result of the graph is kept, because callers use its name and buffer.
    """
    results = set(graph.results)

    def drop(node: Node) -> Rewrite:
        if not node.op.is_identity(node) or node.outputs[0] in results:
            return None
        return (), [node.input(0)]

    return graph.rewrite(drop)


def drop_dead_nodes(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Remove nodes whose outputs do not reach a result of the graph.

    Operands that the graphs inside a node do not read are removed too.
    """
    live: set[Value] = set(graph.results)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(value in live for value in node.outputs):
            node = _without_unread(node)
            kept.append(node)
            live.update(value for value in node.inputs if value is not None)
    return replace(graph, nodes=tuple(reversed(kept)))


def _without_unread(node: Node) -> Node:
    """Return the node without the operands that its inner graphs do not read."""
    graphs, count = node.op.subgraphs, node.op.invariants(node)
    read = [k for k in range(-count, 0) if any(is_read(g, g.inputs[k]) for g in graphs)]
    if len(read) == count:
        return node

    def narrow(graph: Graph) -> Graph:
        return replace(graph, inputs=_without(graph.inputs, count, read))

    return replace(node, op=with_graphs(node.op, narrow), inputs=_without(node.inputs, count, read))


def _without(values: tuple[T, ...], count: int, read: Sequence[int]) -> tuple[T, ...]:
    """Return the values with only the given indices (negative) of the last `count`."""
    return (*values[: len(values) - count], *(values[k] for k in read))
