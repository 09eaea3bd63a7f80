"""How much scratch each node of a network may take without making the arena larger."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.codegen.lower.kernel import ROOM
from smelt.codegen.passes.loops import root_of
from smelt.ir import Graph, Node, Value


def rooms(graph: Graph, *, keep_inputs: bool) -> Mapping[Node, int]:
    """Bytes between what lives while a node runs and the most that ever does.

    Nodes run in the graph's order, each on whole tensors. Only convolutions and dense layers say
    how large an arena has to be: others may be computed in place. States have a memory of their
    own. What has no more room than any call may take is left out; so is everything where graphs
    stand inside.

    Args:
        graph: what is going to be scheduled.
        keep_inputs: whether an inference must leave the inputs as they were.
    """
    if any(node.op.subgraphs for node in graph.nodes):
        return {}
    last = _last_reads(graph)
    if keep_inputs:
        last |= dict.fromkeys(graph.inputs, len(graph.nodes))
    states = {state.before for state in graph.states}
    seen: set[Value] = set()
    ending: dict[int, list[Value]] = {}
    live: dict[Node, int] = {}
    total = 0
    begun: set[Value] = set(graph.inputs)
    for i, node in enumerate(graph.nodes):
        begun |= {root_of(graph, value) for value in node.outputs} - states
        for value in begun - seen:
            total += value.type.bytes
            ending.setdefault(max(last.get(value, i), i), []).append(value)
        seen |= begun
        begun = set[Value]()
        live[node] = total
        total -= sum(value.type.bytes for value in ending.pop(i, ()))
    most = max((size for node, size in live.items() if node.op.quantized_weights), default=0)
    return {node: most - size for node, size in live.items() if most - size > ROOM}


def _last_reads(graph: Graph) -> dict[Value, int]:
    """The place of the node that reads each value last; past all of them for results."""
    last: dict[Value, int] = {}
    for i, node in enumerate(graph.nodes):
        last |= {root_of(graph, value): i for value in node.inputs if value is not None}
    return last | {root_of(graph, value): len(graph.nodes) for value in graph.results}
