"""Constant folding."""

from __future__ import annotations

from smelt.codegen.passes.control import Simplifier, ends_soon
from smelt.codegen.passes.inside import Names
from smelt.ir import Graph, Node, Rewrite, Value


def fold_constants(graph: Graph) -> Graph:
    """Compute every node whose operands are all constant, and resolve control flow that is known.

    Also in the graphs inside operators, which are told which operands are constant.
    """
    control = Simplifier(Names(graph), frozenset(graph.results), fold_constants)

    def fold(node: Node) -> Rewrite:
        if not node.inputs or not all(v is None or v.is_constant for v in node.inputs):
            return control(node)
        if not ends_soon(node):
            return control(node)
        arrays = node.op.reference(node, [None if v is None else v.data for v in node.inputs])
        return (), [
            Value.constant(value.name, array, value.type.quant)
            for value, array in zip(node.outputs, arrays, strict=True)
        ]

    return graph.rewrite(fold)
