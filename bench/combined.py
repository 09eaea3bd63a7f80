"""Many networks in one program: compiling and starting a simulator costs more than they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from smelt.ir import Array, Graph, Node, Value, verify
from smelt.ir.text import print_graph
from smelt.samples import Sample


@dataclass(frozen=True, repr=False)
class Member:
    """A network and what to feed it; members that are run together have equally many samples."""

    graph: Graph
    samples: Sequence[Sample]

    def __repr__(self) -> str:
        """The graph alone, which is what one wants to read when a test fails."""
        return print_graph(self.graph, {})


SampleOutputs = list[tuple[Array, ...]]
"""Per sample, one array per output."""


def combine(name: str, graphs: Sequence[Graph]) -> Graph:
    """All graphs side by side as one, which has the inputs and outputs of all of them in order."""
    parts = [_renamed(graph, f"{index}:") for index, graph in enumerate(graphs)]
    return verify(
        Graph(
            name,
            tuple(value for part in parts for value in part.inputs),
            tuple(value for part in parts for value in part.outputs),
            tuple(node for part in parts for node in part.nodes),
            tuple(state for part in parts for state in part.states),
        ),
        "combining",
    )


def run_combined(
    members: Sequence[Member],
    run: Callable[[Graph, Sequence[Sample]], SampleOutputs],
    name: str = "all",
) -> list[SampleOutputs]:
    """Run all members as one network.

    Args:
        members: networks with equally many samples.
        run: computes the outputs of a graph for samples.
        name: of the one network.

    Returns:
        By member and sample, its outputs.
    """
    samples = [
        tuple(array for member_sample in column for array in member_sample)
        for column in zip(*(m.samples for m in members), strict=True)
    ]
    results = run(combine(name, [m.graph for m in members]), samples)
    found: list[SampleOutputs] = []
    start = 0
    for member in members:
        stop = start + len(member.graph.outputs)
        found.append([outputs[start:stop] for outputs in results])
        start = stop
    return found


def _renamed(graph: Graph, prefix: str) -> Graph:
    """The graph with a prefix before the name of every value."""
    new: dict[Value, Value] = {v: replace(v, name=prefix + v.name) for v in graph.values()}

    def rename(node: Node) -> Node:
        inputs = tuple(None if v is None else new[v] for v in node.inputs)
        return replace(node, inputs=inputs, outputs=tuple(new[v] for v in node.outputs))

    return Graph(
        graph.name,
        tuple(new[v] for v in graph.inputs),
        tuple(new[v] for v in graph.outputs),
        tuple(map(rename, graph.nodes)),
        tuple(replace(s, before=new[s.before], after=new[s.after]) for s in graph.states),
    )
