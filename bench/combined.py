"""Run many networks in one program, because compiling and starting a simulator take longest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from smelt.ir import Array, Graph, Node, Value, verify
from smelt.ir.text import print_graph
from smelt.samples import Sample


@dataclass(frozen=True, repr=False)
class Member:
    """A network and its samples; members that run together need equal numbers of samples."""

    graph: Graph
    samples: Sequence[Sample]

    def __repr__(self) -> str:
        """Return the graph's text, without samples, because test failures print it."""
        return print_graph(self.graph, {})


SampleOutputs = list[tuple[Array, ...]]
"""For each sample, one array per output."""


def combine(name: str, graphs: Sequence[Graph]) -> Graph:
    """Return one graph that contains all graphs, with all their inputs and outputs in order."""
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
        members: Networks with equal numbers of samples.
        run: Computes the outputs of a graph for samples.
        name: Name of the combined network.

    Returns:
        For each member and sample, the outputs.
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
    """Return the graph with a prefix before the name of every value."""
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
