"""Graphs inside operators: passes reach them, and they become part of the graph around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, replace

from smelt.codegen.passes.context import DEFAULT, Pass, PassContext
from smelt.ir import Graph, Node, Op, Rewrite, Value
from smelt.ops.tensor.copy import Copy


def everywhere(transform: Pass, context: PassContext = DEFAULT) -> Callable[[Graph], Graph]:
    """The pass on every graph: those inside operators first, then the one that they are in."""

    def run(graph: Graph) -> Graph:
        def descend(node: Node) -> Rewrite:
            if not node.op.subgraphs:
                return None
            return [replace(node, op=with_graphs(node.op, run))], node.outputs

        return transform(graph.rewrite(descend), context)

    return run


def with_graphs(op: Op, change: Callable[[Graph], Graph]) -> Op:
    """The operator with every graph in its fields changed."""
    graphs = {item.name: getattr(op, item.name) for item in fields(op)}
    changed = {name: change(g) for name, g in graphs.items() if isinstance(g, Graph)}
    return replace(op, **changed)


def bind(graph: Graph, constants: Mapping[int, Value]) -> Graph:
    """The graph with some of its inputs constant, and no longer inputs."""
    known = {
        graph.inputs[i]: Value.constant(graph.inputs[i].name, value.array, value.type.quant)
        for i, value in constants.items()
    }
    return replace(
        graph,
        inputs=tuple(v for v in graph.inputs if v not in known),
        nodes=tuple(
            replace(node, inputs=tuple(None if v is None else known.get(v, v) for v in node.inputs))
            for node in graph.nodes
        ),
        outputs=tuple(known.get(v, v) for v in graph.outputs),
    )


class Names:
    """Names that are not yet taken in a graph."""

    def __init__(self, graph: Graph) -> None:
        self._taken = {value.name for value in graph.values()}

    def fresh(self, name: str) -> str:
        """The name, or one like it."""
        found, count = name, 1
        while found in self._taken:
            count += 1
            found = f"{name}:{count}"
        self._taken.add(found)
        return found


def inline(
    graph: Graph,
    arguments: Sequence[Value],
    node: Node,
    names: Names,
    results: AbstractSet[Value],
) -> tuple[list[Node], list[Value]]:
    """The nodes of `graph` in the place of `node`, and the values that stand for its outputs.

    Args:
        graph: what is computed instead.
        arguments: its inputs.
        node: what computed it, in the graph around it.
        names: of the graph around it.
        results: values that must stay, since they are results of the graph around it.
    """
    known: dict[Value, Value] = dict(zip(graph.inputs, arguments, strict=True))
    for value, output in zip(graph.outputs, node.outputs, strict=True):
        if value in graph.producer and value not in known:
            known[value] = output
    for value in graph.values():
        if value not in known:
            known[value] = replace(value, name=names.fresh(value.name))
    nodes = [
        replace(
            inner,
            inputs=tuple(None if v is None else known[v] for v in inner.inputs),
            outputs=tuple(known[v] for v in inner.outputs),
        )
        for inner in graph.nodes
    ]
    copies, values = stand_for(node, [known[v] for v in graph.outputs], results)
    return [*nodes, *copies], values


def stand_for(
    node: Node, values: Sequence[Value], results: AbstractSet[Value]
) -> tuple[list[Node], list[Value]]:
    """Values in place of the node's outputs, copied where an output's own name must stay."""
    copies: list[Node] = []
    standing: list[Value] = []
    for output, value in zip(node.outputs, values, strict=True):
        if value is output or output not in results:
            standing.append(value)
        elif value.is_constant:
            standing.append(Value.constant(output.name, value.array, output.type.quant))
        else:
            copies.append(Node(Copy(), (value,), (output,), node.origin))
            standing.append(output)
    return copies, standing
