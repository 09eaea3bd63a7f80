"""How much scratch each node may take without making the arena larger."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.codegen.lower.kernel import DEFAULT_SCRATCH
from smelt.codegen.passes.loops import root_of
from smelt.ir import Graph, Node, Value


def scratch_limits(graph: Graph, *, keep_inputs: bool) -> Mapping[Node, int]:
    """Return the scratch limit of nodes in bytes: the arena's peak minus what is live at the node.

    Nodes run in the graph's order, each on whole tensors. Only convolutions and dense layers
    determine the peak, because other operators may be computed in place. States have memory of
    their own. Nodes whose limit is not above `DEFAULT_SCRATCH` are left out. If the graph has
    branches or loops, the result is empty.

    Args:
        graph: The graph that is going to be scheduled.
        keep_inputs: Whether an inference must leave its inputs unchanged.
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
    return {node: most - size for node, size in live.items() if most - size > DEFAULT_SCRATCH}


def _last_reads(graph: Graph) -> dict[Value, int]:
    """Return the index of the last node that reads each value; for results, the number of nodes."""
    last: dict[Value, int] = {}
    for i, node in enumerate(graph.nodes):
        last |= {root_of(graph, value): i for value in node.inputs if value is not None}
    return last | {root_of(graph, value): len(graph.nodes) for value in graph.results}
