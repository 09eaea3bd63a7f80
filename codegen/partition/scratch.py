"""How much memory each node may take without making the arena larger."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet

from smelt.codegen.lower.kernel import DEFAULT_SCRATCH, KernelCall
from smelt.codegen.passes.loops import root_of
from smelt.ir import Graph, Node, Value


def scratch_limits(
    graph: Graph, saved: Callable[[Node], int], *, keep_inputs: bool
) -> Mapping[Node, int]:
    """Return the scratch limit of nodes in bytes: the arena's peak minus what is live at the node.

    Nodes run in the graph's order, each on whole tensors. Only convolutions and dense layers
    determine the peak, because other operators may be computed in place. States have memory of
    their own. Nodes whose limit is not above `DEFAULT_SCRATCH` are left out. If the graph has
    branches or loops, the result is empty.

    Args:
        graph: The graph that is going to be scheduled.
        saved: Returns the bytes of a node's operand that its results are going to overwrite.
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
        live[node] = total - (saved(node) if node.op.quantized_weights else 0)
        total -= sum(value.type.bytes for value in ending.pop(i, ()))
    most = max((size for node, size in live.items() if node.op.quantized_weights), default=0)
    return {node: most - size for node, size in live.items() if most - size > DEFAULT_SCRATCH}


def last_reads(graph: Graph, *, keep_inputs: bool) -> Mapping[Node, AbstractSet[int]]:
    """Return for each node the operands, by index, that may be overwritten by its results.

    No later node reads these operands, and they are neither constants nor states. If the graph has
    branches or loops, the result is empty.

    Args:
        graph: The graph that is going to be scheduled.
        keep_inputs: Whether an inference must leave its inputs unchanged.
    """
    if any(node.op.subgraphs for node in graph.nodes):
        return {}
    last = _last_reads(graph)
    kept = {state.before for state in graph.states} | set(graph.inputs if keep_inputs else ())
    return {
        node: frozenset(
            index
            for index, value in enumerate(node.inputs)
            if value is not None
            and value.data is None
            and last[root_of(graph, value)] == i
            and root_of(graph, value) not in kept
        )
        for i, node in enumerate(graph.nodes)
    }


def saved_in_place(call: KernelCall, node: Node, overwritable: Collection[int]) -> int:
    """Return how many bytes of an operand the results of a call overwrite, of the largest one."""
    saved = 0
    for output, operand in call.in_place:
        value = node.inputs[operand]
        if value is not None and operand in overwritable:
            saved = max(saved, min(value.type.bytes, node.outputs[output].type.bytes))
    return saved


def _last_reads(graph: Graph) -> dict[Value, int]:
    """Return the index of the last node that reads each value; for results, the number of nodes."""
    last: dict[Value, int] = {}
    for i, node in enumerate(graph.nodes):
        last |= {root_of(graph, value): i for value in node.inputs if value is not None}
    return last | {root_of(graph, value): len(graph.nodes) for value in graph.results}
