"""Copies for results that no step of the schedule would compute."""

from __future__ import annotations

from dataclasses import replace

from smelt.codegen.passes.context import DEFAULT, PassContext
from smelt.codegen.passes.loops import root_of
from smelt.ir import Graph, Node, Origin, Value
from smelt.ops.tensor.copy import Copy


def materialize_results(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Copy results that cannot be returned in place into the arena.

    These are constants, which have no buffer, and old values of states. A state's buffer already
    contains the next value when results are read or other states are set.
    """
    states = {state.before for state in graph.states}
    copies: dict[Value, Value] = {}
    nodes: list[Node] = []

    def own(value: Value, state: Value | None = None) -> Value:
        root = root_of(graph, value)
        if not root.is_constant and (root not in states or root is state):
            return value
        if value not in copies:
            copies[value] = Value(f"{value.name}:result", value.type)
            origin = Origin("RESULT", len(nodes), value.name)
            nodes.append(Node(Copy(), (value,), (copies[value],), origin))
        return copies[value]

    outputs = tuple(own(value) for value in graph.outputs)
    after = tuple(replace(s, after=own(s.after, s.before)) for s in graph.states)
    return replace(graph, nodes=(*graph.nodes, *nodes), outputs=outputs, states=after)
