"""Nodes that change nothing, and nodes whose results nobody reads."""

from __future__ import annotations

from dataclasses import replace

from smelt.codegen.passes.context import DEFAULT, PassContext
from smelt.codegen.passes.loops import is_read
from smelt.ir import Graph, Node, Rewrite, Value
from smelt.ops.control.branches import If, Loop


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
    """The node without the arguments of If and the invariant operands of Loop that are not read."""
    match node.op:
        case If(then_graph, else_graph):
            graphs, first = (then_graph, else_graph), 0
        case Loop(body, carried, scans=scans):
            graphs, first = (body,), 1 + carried + len(scans)
        case _:
            return node
    count = len(graphs[0].inputs)
    kept = [i for i in range(count) if i < first or any(is_read(g, g.inputs[i]) for g in graphs)]
    if len(kept) == count:
        return node
    narrow = [replace(g, inputs=tuple(g.inputs[i] for i in kept)) for g in graphs]
    op = If(*narrow) if isinstance(node.op, If) else replace(node.op, body=narrow[0])
    operands = (node.inputs[0], *(node.inputs[i + 1] for i in kept))
    return replace(node, op=op, inputs=operands)
