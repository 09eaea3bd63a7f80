"""Running passes on graphs inside operators, and inlining such graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, replace

from smelt.codegen.passes.context import DEFAULT, Pass, PassContext
from smelt.ir import Graph, Node, Op, Rewrite, Value
from smelt.ops.tensor.copy import Copy


def everywhere(transform: Pass, context: PassContext = DEFAULT) -> Callable[[Graph], Graph]:
    """Return a transform that runs the pass on inner graphs first, then on the graph itself."""

    def run(graph: Graph) -> Graph:
        def descend(node: Node) -> Rewrite:
            if not node.op.subgraphs:
                return None
            return [replace(node, op=with_graphs(node.op, run))], node.outputs

        return transform(graph.rewrite(descend), context)

    return run


def with_graphs(op: Op, change: Callable[[Graph], Graph]) -> Op:
    """Return the operator with `change` applied to every graph in its fields."""
    graphs = {item.name: getattr(op, item.name) for item in fields(op)}
    changed = {name: change(g) for name, g in graphs.items() if isinstance(g, Graph)}
    return replace(op, **changed)


def bind(graph: Graph, constants: Mapping[int, Value]) -> Graph:
    """Return the graph with the inputs at the given indices replaced by constants."""
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
    """Generates value names that are unused in a graph."""

    def __init__(self, graph: Graph) -> None:
        self._taken = {value.name for value in graph.values()}

    def fresh(self, name: str) -> str:
        """Return the name, with a number appended if it is already used."""
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
    """Return the nodes of `graph` to replace `node`, and the values that replace its outputs.

    Args:
        graph: The graph to inline.
        arguments: The values for its inputs.
        node: The node to replace, in the surrounding graph.
        names: Names of the surrounding graph.
        results: Values that must stay, because the surrounding graph returns them.
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
    copies, values = replacements(node, [known[v] for v in graph.outputs], results)
    return [*nodes, *copies], values


def replacements(
    node: Node, values: Sequence[Value], results: AbstractSet[Value]
) -> tuple[list[Node], list[Value]]:
    """Return values that replace the node's outputs, and the copies that they need.

    A result of the graph keeps its name: it becomes a copy of the replacement, or a constant.
    """
    copies: list[Node] = []
    replaced: list[Value] = []
    for output, value in zip(node.outputs, values, strict=True):
        if value is output or output not in results:
            replaced.append(value)
        elif value.is_constant:
            replaced.append(Value.constant(output.name, value.array, output.type.quant))
        else:
            copies.append(Node(Copy(), (value,), (output,), node.origin))
            replaced.append(output)
    return copies, replaced
