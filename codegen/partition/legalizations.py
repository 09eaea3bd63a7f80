"""Rewrites of operators into others, for backends that do not serve the original operator.

Each rewrite returns nodes with the same result, bit-exact for integers, or None if it does not
apply. The last node computes the value that the original node computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

import numpy as np

from smelt.codegen.passes.quantized.function_chains import tabulated
from smelt.codegen.passes.subgraphs import Names
from smelt.ir import Array, DType, Node, Op, Quant, Rounding, TensorType, Value
from smelt.ops.arithmetic.fixed_point import Requantizer, convolution_scales
from smelt.ops.core.convolution import NO_PADDING, Conv2D, DepthwiseConv2D
from smelt.ops.core.fully_connected import FullyConnected, fully_connected_scales
from smelt.ops.core.matmul import MatMul, swapped
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.table import Table
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.slice import Slice
from smelt.ops.tensor.transpose import Transpose

MOST_GROUPS = 8
"""Largest number of groups to split: more would cost more in slices and concatenation."""

Legalization = Callable[[Node, Names], "list[Node] | None"]


class _Sequence:
    """A list of nodes under construction that replaces one node."""

    def __init__(self, node: Node, names: Names) -> None:
        self._node = node
        self._names = names
        self.nodes: list[Node] = []

    def add(self, op: Op, *inputs: Value | None, like: Value | None = None) -> Value:
        """Append a node; return its output, quantized like another value."""
        (type_,) = op.infer([None if v is None else v.type for v in inputs])
        quant = None if like is None else like.type.quant
        value = Value(self._names.fresh(self._node.name), replace(type_, quant=quant))
        self.nodes.append(Node(op, inputs, (value,), self._node.origin, self._node.rounding))
        return value

    def constant(self, data: Array, quant: Quant | None) -> Value:
        """Return a new constant."""
        name = self._names.fresh(f"{self._node.name}:part")
        return Value.constant(name, np.ascontiguousarray(data), quant)

    def end(self) -> list[Node]:
        """Return the nodes; the last one outputs the replaced node's value."""
        last = self.nodes[-1]
        self.nodes[-1] = replace(last, outputs=self._node.outputs)
        return self.nodes


def split_groups(node: Node, names: Names) -> list[Node] | None:
    """Split a grouped convolution into slices, one convolution per group, and a concatenation."""
    op = node.op
    weights, bias = node.inputs[1] if len(node.inputs) > 1 else None, node.optional(2)
    if not isinstance(op, Conv2D) or weights is None or weights.data is None:
        return None
    if not 1 < op.groups <= MOST_GROUPS:
        return None
    if bias is not None and bias.data is None:
        return None
    x, parts = node.input(0), _Sequence(node, names)
    depth, outputs = x.type.shape[3] // op.groups, weights.type.shape[0] // op.groups
    results: list[Value] = []
    for group in range(op.groups):
        chosen = slice(group * outputs, (group + 1) * outputs)
        part = parts.add(Slice.along(3, group * depth, depth, x.type.shape), x, like=x)
        own = parts.constant(weights.array[chosen], _chosen(weights.type.quant, chosen))
        inputs = [part, own]
        if bias is not None:
            own_bias = bias.array.ravel()[chosen]
            inputs.append(parts.constant(own_bias, _chosen(bias.type.quant, chosen)))
        results.append(parts.add(replace(op, groups=1), *inputs, like=node.output))
    parts.add(Concat(3), *results, like=node.output)
    return parts.end()


def dense_to_convolution(node: Node, names: Names) -> list[Node] | None:
    """Convert a dense layer to a 1x1 convolution of an image with one row."""
    op = node.op
    if not isinstance(op, FullyConnected) or op.sums or node.input(1).data is None:
        return None
    x, weights = node.input(0), node.input(1)
    if not _scaled_alike(x.type, weights.type, node):
        return None
    outputs, depth = weights.type.shape
    parts = _Sequence(node, names)
    image = parts.add(Reshape((1, 1, x.type.size // depth, depth)), x, like=x)
    kernel = parts.constant(weights.array.reshape(outputs, 1, 1, depth), weights.type.quant)
    made = parts.add(
        Conv2D(activation=op.activation), image, kernel, *node.inputs[2:], like=node.output
    )
    parts.add(Reshape(node.output.type.shape), made, like=node.output)
    return parts.end()


def convolution_to_dense(node: Node, names: Names) -> list[Node] | None:
    """Convert a convolution to a dense layer if its window is the whole image or one pixel."""
    op = node.op
    if not isinstance(op, Conv2D) or op.groups > 1 or op.padding != NO_PADDING or op.sums:
        return None
    x, weights = node.input(0), node.input(1)
    if weights.data is None or not _scaled_alike(x.type, weights.type, node):
        return None
    outputs, height, width, depth = weights.type.shape
    whole = x.type.shape[1:3] == (height, width)
    pointwise = (height, width) == (1, 1) and op.stride == (1, 1)
    if not (whole or pointwise):
        return None
    taps = height * width * depth
    parts = _Sequence(node, names)
    rows = parts.add(Reshape((x.type.size // taps, taps)), x, like=x)
    matrix = parts.constant(weights.array.reshape(outputs, taps), weights.type.quant)
    made = parts.add(
        FullyConnected(op.activation), rows, matrix, *node.inputs[2:], like=node.output
    )
    parts.add(Reshape(node.output.type.shape), made, like=node.output)
    return parts.end()


def explicit_padding(node: Node, names: Names) -> list[Node] | None:
    """Convert asymmetric padding of a window to a `Pad` node before it."""
    op = node.op
    if not isinstance(op, Conv2D | DepthwiseConv2D | Pool2D):
        return None
    if all(before == after for before, after in op.padding):
        return None
    x, value = node.input(0), None
    if isinstance(op, Pool2D):
        if op.kind != "max" or not x.type.dtype.is_integer:
            return None
        value = x.type.dtype.limits[0]
    parts = _Sequence(node, names)
    padded = parts.add(Pad(((0, 0), *op.padding, (0, 0)), value), x, like=x)
    parts.add(replace(op, padding=NO_PADDING), padded, *node.inputs[1:], like=node.output)
    return parts.end()


def function_to_table(node: Node, names: Names) -> list[Node] | None:
    """Convert a function of 8-bit numbers to a table of its 256 results."""
    results = tabulated(node) if isinstance(node.op, Unary) else None
    if results is None:
        return None
    parts = _Sequence(node, names)
    parts.add(Table(), node.input(0), parts.constant(results, None), like=node.output)
    return [replace(made, rounding=None) for made in parts.end()]


def matmul_to_dense(node: Node, names: Names) -> list[Node] | None:
    """Convert a stack of matrix products to one dense layer each, and a concatenation."""
    op = node.op
    if not isinstance(op, MatMul) or op.left or op.result:
        return None
    a, b = node.input(0), node.input(1)
    rank = len(a.type.shape)
    if a.type.dtype is not DType.FLOAT32 or op.right not in ((), swapped(len(b.type.shape))):
        return None
    if rank < 3 or a.type.shape[:-2] != b.type.shape[:-2]:
        return None
    rows, depth = a.type.shape[-2:]
    count = prod(a.type.shape[:-2])
    if count > _MOST_MATRICES:
        return None
    parts = _Sequence(node, names)
    left = parts.add(Reshape((count, rows, depth)), a)
    right = parts.add(Reshape((count, *b.type.shape[-2:])), b)
    results: list[Value] = []
    for index in range(count):
        x = parts.add(Slice.along(0, index, 1, left.type.shape), left)
        w = parts.add(Slice.along(0, index, 1, right.type.shape), right)
        matrix = parts.add(Reshape(w.type.shape[1:]), w)
        if not op.right:
            matrix = parts.add(Transpose((1, 0)), matrix)
        made = parts.add(FullyConnected(), parts.add(Reshape((rows, depth)), x), matrix)
        results.append(parts.add(Reshape((1, *made.type.shape)), made))
    joined = parts.add(Concat(0), *results) if count > 1 else results[0]
    parts.add(Reshape(node.output.type.shape), joined)
    return parts.end()


_MOST_MATRICES = 64
"""Longer stacks are not converted: each matrix becomes several layers of the program."""


def _chosen(quant: Quant | None, part: slice) -> Quant | None:
    """Return the quantization of a slice of the output channels (axis 0)."""
    if quant is None or quant.axis is None:
        return quant
    return Quant(quant.scale[part], quant.zero_point[part], quant.axis)


def _scaled_alike(x: TensorType, weights: TensorType, node: Node) -> bool:
    """Return whether a dense layer and a convolution of these operands requantize equally.

    TensorFlow Lite Micro rounds the product of the scales of a dense layer to float32.
    """
    y, rounding = node.output.type, node.rounding
    if y.quant is None or rounding is None:
        return x.quant is None
    if rounding is Rounding.ONNX:
        return True
    dense = Requantizer(fully_connected_scales(x, weights, y, rounding), rounding)
    convolution = Requantizer(convolution_scales(x, weights, y, rounding), rounding)
    return (dense.multipliers, dense.shifts) == (convolution.multipliers, convolution.shifts)


LEGALIZATIONS: Mapping[str, Legalization] = {
    rewrite.__name__: rewrite
    for rewrite in (
        split_groups,
        dense_to_convolution,
        convolution_to_dense,
        explicit_padding,
        function_to_table,
        matmul_to_dense,
    )
}
"""The rewrites by name, in the order in which they are tried."""
