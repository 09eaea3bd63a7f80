"""Results that no step of the schedule would compute."""

from __future__ import annotations

from dataclasses import replace

from smelt.ir import Graph, Node, Origin, Value
from smelt.ops.copy import Copy


def materialize_results(graph: Graph) -> Graph:
    """Copy constants that are results of the graph into the arena, as a step of their own."""
    copies: dict[Value, Value] = {}
    nodes: list[Node] = []
    for index, value in enumerate(graph.results):
        if value.is_constant and value not in copies:
            copy = Value(f"{value.name}:result", value.type)
            copies[value] = copy
            nodes.append(Node(Copy(), (value,), (copy,), Origin("RESULT", index, value.name)))
    return replace(
        graph,
        nodes=(*graph.nodes, *nodes),
        outputs=tuple(copies.get(v, v) for v in graph.outputs),
        states=tuple(replace(s, after=copies.get(s.after, s.after)) for s in graph.states),
    )
