"""Constant folding."""

from __future__ import annotations

import numpy as np

from smelt.codegen.passes.cleanup.control_flow import Simplifier
from smelt.codegen.passes.context import DEFAULT, PassContext
from smelt.codegen.passes.subgraphs import Names
from smelt.ir import Graph, Node, Rewrite, Value
from smelt.ir.budget import affords
from smelt.ir.evaluate import compute


def fold_constants(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Compute nodes whose operands are all constant, and resolve control flow that is known.

    This includes the graphs inside operators, into which constant operands are propagated. A node
    that would exceed the remaining compute budget is left for run time. Nodes whose outputs all
    have no elements become empty constants, so that no kernel must handle them.
    """
    control = Simplifier(Names(graph), frozenset(graph.results), fold_constants)

    def fold(node: Node) -> Rewrite:
        if all(value.type.size == 0 for value in node.outputs):
            return (), [_without_elements(value) for value in node.outputs]
        if not node.inputs or not all(v is None or v.is_constant for v in node.inputs):
            return control(node)
        if not affords(node.effort):
            return control(node)
        arrays = compute(node, [None if v is None else v.data for v in node.inputs])
        return (), [
            Value.constant(value.name, array, value.type.quant)
            for value, array in zip(node.outputs, arrays, strict=True)
        ]

    return graph.rewrite(fold)


def _without_elements(value: Value) -> Value:
    none = np.zeros(value.type.shape, value.type.dtype.numpy)
    return Value.constant(value.name, none, value.type.quant)
