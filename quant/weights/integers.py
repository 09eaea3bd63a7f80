"""Weights and biases of products as integers.

TensorFlow Lite 8-bit quantization specification: int8 in [-127, 127], symmetric, one scale an
output channel; an int32 bias of scale `input scale · weight scale`.

Every product is seen as matrices, one a group: `[groups, outputs, taps]`, times the windows of its
input, `[groups, rows, taps]`. A depthwise convolution has a group for each input channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from smelt.ir import Array, Node, Value
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D, patches
from smelt.ops.core.convolution_nd import ConvTranspose

LIMIT = 127
"""Largest magnitude of a stored weight."""

_SUM_LIMIT = 2.0**30
"""Largest magnitude of a sum, so that no partial sum overflows 32 bits."""

_SHRINK = tuple(1.0 - 0.02 * i for i in range(26))
"""Parts of the largest weight that a scale is tried for."""


@dataclass(frozen=True)
class StoredProduct:
    """A product's constants: int8 weights in the operator's layout, their scales, int32 bias."""

    weights: Array
    scale: Array
    bias: Array


def channel_axis(node: Node) -> int:
    """The axis of a product's weights that its output channels lie along."""
    last = isinstance(node.op, DepthwiseConv2D | ConvTranspose)
    return len(node.input(1).type.shape) - 1 if last else 0


def groups_of(node: Node) -> int:
    """How many groups a product has."""
    if isinstance(node.op, DepthwiseConv2D):
        return node.input(0).type.shape[3]
    return node.op.groups if isinstance(node.op, Conv2D | ConvTranspose) else 1


def to_matrices(node: Node, weights: Array) -> Array:
    """float64 `[groups, outputs, taps]` of weights in the operator's layout."""
    rows = np.moveaxis(weights, channel_axis(node), 0)
    return rows.reshape(groups_of(node), -1, rows[0].size).astype(np.float64)


def from_matrices(node: Node, matrices: Array, value: Value) -> Array:
    """The inverse of `to_matrices`: the shape is that of `value`."""
    axis = channel_axis(node)
    shape = value.type.shape
    moved = (shape[axis], *shape[:axis], *shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(matrices.reshape(moved), 0, axis))


def windows(node: Node, x: Array) -> Array:
    """The windows of a product's real input: float32 `[groups, rows, taps]`.

    Of a transposed convolution, the taps that meet no input for an output see zeros there.
    """
    weights, op = node.input(1), node.op
    if isinstance(op, ConvTranspose):
        size = weights.type.shape[:-2]
        found = op.windows(x, size)
    elif isinstance(op, Conv2D | DepthwiseConv2D):
        size = (weights.type.shape[1], weights.type.shape[2])
        found = patches(x, size, op.stride, op.padding, op.dilation, 0.0)
    else:
        return x.reshape(1, -1, weights.type.shape[1])
    groups = groups_of(node)
    split = found.reshape(-1, prod(size), groups, found.shape[-1] // groups)
    return np.ascontiguousarray(split.transpose(2, 0, 1, 3)).reshape(groups, split.shape[0], -1)


def real_bias(node: Node) -> Array:
    """A product's bias as float64 `[outputs]`; zeros where it has none."""
    bias = node.optional(2)
    if bias is None:
        return np.zeros(node.input(1).type.shape[channel_axis(node)])
    return bias.array.ravel().astype(np.float64)


def largest_scales(matrices: Array) -> Array:
    """The scales that clip no weight: `[groups, outputs]`."""
    return np.abs(matrices).max(axis=2, initial=0.0) / LIMIT


def clipped_scales(matrices: Array, importance: Array) -> Array:
    """The scales of least squared error when each weight goes to its nearest integer.

    Args:
        matrices: `[groups, outputs, taps]`.
        importance: what the square of an error counts, by tap: `[groups, taps]`.
    """
    full = largest_scales(matrices)
    best, least = full, np.full(full.shape, np.inf)
    for part in _SHRINK:
        scale = np.maximum(full * part, 1e-30)
        error = (nearest(matrices, scale) * scale[..., None] - matrices) ** 2
        found = np.einsum("got,gt->go", error, importance)
        best = np.where(found < least, scale, best)
        least = np.minimum(found, least)
    return best


def safe_scales(scales: Array, matrices: Array, bias: Array, input_scale: float) -> Array:
    """Scales raised where a sum of products and bias could leave 32 bits; rounded to float32.

    Args:
        scales: `[groups, outputs]`.
        matrices: the weights.
        bias: real, `[groups, outputs]`.
        input_scale: of the product's input.
    """
    reach = np.abs(bias) / input_scale + 255.0 * np.abs(matrices).sum(axis=2)
    least = np.maximum(reach / _SUM_LIMIT, 1e-12)
    return np.maximum(scales, least).astype(np.float32).astype(np.float64)


def nearest(matrices: Array, scales: Array) -> Array:
    """Each weight's nearest integer, as float64."""
    return np.clip(np.rint(matrices / scales[..., None]), -LIMIT, LIMIT)


def stored_bias(bias: Array, input_scale: float, scales: Array) -> Array:
    """int32 of a real bias."""
    units = np.rint(bias / (input_scale * scales))
    return np.clip(units, -(2.0**31), 2.0**31 - 1).astype(np.int32)
