"""Sequence of the float rewrites that prepare a network for quantization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from smelt.ir import DType, Graph, Node, Value
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.reduce import Reduce
from smelt.ops.tensor.pad import Pad
from smelt.quant.rewrites.l2_normalization import use_norms
from smelt.quant.rewrites.recurrent import merge_dense


def prepare(graph: Graph) -> Graph:
    """Apply all rewrites to forms that lose less in int8."""
    return merge_dense(use_norms(graph.rewrite(_global_pool).rewrite(_pad_by_operand)))


def _global_pool(node: Node) -> tuple[Sequence[Node], Sequence[Value]] | None:
    """Replace average pooling of whole images by a mean, whose output has its own scale."""
    op = node.op
    if not isinstance(op, Pool2D) or op.kind != "average":
        return None
    _, height, width, _ = node.input(0).type.shape
    whole = op.window == (height, width) and op.dilation == (1, 1)
    padded = any(any(pair) for pair in op.padding)
    if not whole or padded or op.activation is not Activation.NONE:
        return None
    return [replace(node, op=Reduce("mean", (1, 2), keep_dims=True))], node.outputs


def _pad_by_operand(node: Node) -> tuple[Sequence[Node], Sequence[Value]] | None:
    """Make a pad value an operand, so that it is quantized like the tensor."""
    op = node.op
    if not isinstance(op, Pad) or op.mode != "constant" or not op.value or len(node.inputs) != 1:
        return None
    x = node.input(0)
    if x.type.dtype is not DType.FLOAT32:
        return None
    border = Value.constant(f"{node.name}:border", np.array([op.value], np.float32))
    return [replace(node, op=replace(op, value=None), inputs=(x, border))], node.outputs
