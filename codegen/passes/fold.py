"""Constant folding."""

from __future__ import annotations

from smelt.ir import Graph, Node, Rewrite, Value


def fold_constants(graph: Graph) -> Graph:
    """Compute every node whose operands are all constant."""

    def fold(node: Node) -> Rewrite:
        if not node.inputs or not all(v is None or v.is_constant for v in node.inputs):
            return None
        arrays = node.op.reference(node, [None if v is None else v.data for v in node.inputs])
        return (), [
            Value.constant(value.name, array, value.type.quant)
            for value, array in zip(node.outputs, arrays, strict=True)
        ]

    return graph.rewrite(fold)
