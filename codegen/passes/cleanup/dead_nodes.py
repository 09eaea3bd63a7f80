"""Nodes that change nothing, and nodes whose results nobody reads."""

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
    """Remove operators that give back their operand.

    Reshapes to the same shape, transpositions in order, empty pads, slices of everything,
    requantizations to the same type, pools of single elements, concatenations of one tensor.
    Results of the graph keep their nodes: their names and buffers are the caller's.
    """
    results = set(graph.results)

    def drop(node: Node) -> Rewrite:
        if not node.op.is_identity(node) or node.outputs[0] in results:
            return None
        return (), [node.input(0)]

    return graph.rewrite(drop)


def drop_dead_nodes(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Remove nodes none of whose outputs reaches a result of the graph.

    And operands that the graphs inside a node do not read.
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
    """The node without the operands that the graphs inside are passed and do not read."""
    graphs, count = node.op.subgraphs, node.op.invariants(node)
    read = [k for k in range(-count, 0) if any(is_read(g, g.inputs[k]) for g in graphs)]
    if len(read) == count:
        return node

    def narrow(graph: Graph) -> Graph:
        return replace(graph, inputs=_without(graph.inputs, count, read))

    return replace(node, op=with_graphs(node.op, narrow), inputs=_without(node.inputs, count, read))


def _without(values: tuple[T, ...], count: int, read: Sequence[int]) -> tuple[T, ...]:
    """Of the last `count` values, those of these indices only."""
    return (*values[: len(values) - count], *(values[k] for k in read))
