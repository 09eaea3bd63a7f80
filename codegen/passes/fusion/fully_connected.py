"""Conversion of products with constant matrices to fully connected layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from smelt.codegen.passes.context import DEFAULT, PassContext
from smelt.codegen.passes.rewriting import Matcher, is_float, replace_nodes
from smelt.ir import Graph, Node
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.matmul import MatMul


def use_dense_layers(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Replace each product with a constant right-hand matrix by a `FullyConnected`."""
    return replace_nodes(graph, _dense)


def _dense(node: Node, matcher: Matcher) -> Node | None:
    op = node.op
    if not isinstance(op, MatMul):
        return None
    if not is_float(node.output) and not node.output.type.is_quantized:
        return None
    x, matrix = node.input(0), node.input(1)
    if x.is_constant or not matrix.is_constant:
        return None
    rank, in_order = len(x.type.shape), tuple(range(len(x.type.shape)))
    stacked = matrix.array.transpose(op.right or range(matrix.array.ndim))
    alone = stacked.ndim <= rank and all(size == 1 for size in stacked.shape[:-2])
    if not alone or {op.left, op.result} - {(), in_order} or 0 in stacked.shape:
        return None
    weights = np.ascontiguousarray(stacked.reshape(stacked.shape[-2:]).T)
    return replace(
        node,
        op=FullyConnected(keep_dims=True),
        inputs=(x, matcher.constant(f"{matrix.name}:weights", weights, matrix.type.quant)),
    )
