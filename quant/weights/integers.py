"""Conversion of products' weights and biases to integers.

A product is a convolution or a dense layer. As in TensorFlow Lite's 8-bit quantization
specification, weights are int8 in [-127, 127] with zero point 0 and one scale per output channel.
The bias is int32, and its scale is `input scale * weight scale`.

Each product is treated as matrices, one per group: weights `[groups, outputs, taps]`, times windows
of the input `[groups, rows, taps]`. `outputs` counts the output channels of one group. A depthwise
convolution has a group for each input channel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.ir import Array, Node, Value
from smelt.ir.weights import weights_rule

LIMIT = 127
"""Largest magnitude of a stored weight."""

_SUM_LIMIT = 2.0**30
"""Largest allowed magnitude of a sum, so that no partial sum overflows int32."""

_SHRINK = tuple(1.0 - 0.02 * i for i in range(26))
"""Candidate scales, relative to the one for the largest weight."""


@dataclass(frozen=True)
class StoredProduct:
    """A product's constants: int8 weights in the operator's layout, their scales, int32 bias."""

    weights: Array
    scale: Array
    bias: Array


def channel_axis(node: Node) -> int:
    """Return the axis of the output channels in a product's weights."""
    return weights_rule(node.op).output_axis(node.input(1).type)


def to_matrices(node: Node, weights: Array) -> Array:
    """Convert weights from the operator's layout to float64 `[groups, outputs, taps]`."""
    rows = np.moveaxis(weights, channel_axis(node), 0)
    return rows.reshape(weights_rule(node.op).groups(node), -1, rows[0].size).astype(np.float64)


def from_matrices(node: Node, matrices: Array, value: Value) -> Array:
    """Convert matrices back to the operator's layout and the shape of `value`."""
    axis = channel_axis(node)
    shape = value.type.shape
    moved = (shape[axis], *shape[:axis], *shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(matrices.reshape(moved), 0, axis))


def windows(node: Node, x: Array) -> Array:
    """Return the windows of a product's real input, float32 `[groups, rows, taps]`.

    Taps outside the input are 0.
    """
    rule = weights_rule(node.op)
    found, groups = rule.windows(node, x), rule.groups(node)
    rows, taps, channels = found.shape
    split = found.reshape(rows, taps, groups, channels // groups)
    return np.ascontiguousarray(split.transpose(2, 0, 1, 3)).reshape(groups, rows, -1)


def real_bias(node: Node) -> Array:
    """Return a product's bias for all output channels as float64, or zeros if it has none."""
    bias = node.optional(2)
    if bias is None:
        return np.zeros(node.input(1).type.shape[channel_axis(node)])
    return bias.array.ravel().astype(np.float64)


def unclipped_scales(matrices: Array) -> Array:
    """Return the smallest scales that clip no weight, `[groups, outputs]`."""
    return np.abs(matrices).max(axis=2, initial=0.0) / LIMIT


def clipped_scales(matrices: Array, importance: Array) -> Array:
    """Return the scales for which rounding to nearest has the least squared error.

    Args:
        matrices: weights, `[groups, outputs, taps]`.
        importance: factor by which each tap's squared error counts, `[groups, taps]`.
    """
    full = unclipped_scales(matrices)
    best, least = full, np.full(full.shape, np.inf)
    for part in _SHRINK:
        scale = np.maximum(full * part, 1e-30)
        error = (nearest(matrices, scale) * scale[..., None] - matrices) ** 2
        found = np.einsum("got,gt->go", error, importance)
        best = np.where(found < least, scale, best)
        least = np.minimum(found, least)
    return best


def safe_scales(scales: Array, matrices: Array, bias: Array, input_scale: float) -> Array:
    """Return the scales, raised where the sum could overflow int32, and rounded to float32.

    Args:
        scales: scales, `[groups, outputs]`.
        matrices: weights, `[groups, outputs, taps]`.
        bias: real bias, `[groups, outputs]`.
        input_scale: scale of the product's input.
    """
    reach = np.abs(bias) / input_scale + 255.0 * np.abs(matrices).sum(axis=2)
    least = np.maximum(reach / _SUM_LIMIT, 1e-12)
    return np.maximum(scales, least).astype(np.float32).astype(np.float64)


def nearest(matrices: Array, scales: Array) -> Array:
    """Divide weights by their scales, round to nearest, and clip to +-`LIMIT`, as float64."""
    return np.clip(np.rint(matrices / scales[..., None]), -LIMIT, LIMIT)


def stored_bias(bias: Array, input_scale: float, scales: Array) -> Array:
    """Convert a real bias to int32 in units of `input_scale * scales`; clip what exceeds int32."""
    units = np.rint(bias / (input_scale * scales))
    return np.clip(units, -(2.0**31), 2.0**31 - 1).astype(np.int32)
