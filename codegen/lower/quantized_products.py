"""Which convolutions and dense layers C kernels support, the ranges of their sums, their biases."""

from __future__ import annotations

import numpy as np

from smelt.codegen.lower.kernel import NARROW_FLOATS, Refusal
from smelt.codegen.lower.requantization import fits_int32, folded_bias, sum_range
from smelt.ir import Array, DType, Node, Rounding
from smelt.ops.arithmetic.fixed_point import REDUCED_LIMIT

SumRange = tuple[Array, Array]
"""int64 `[o]` each: the smallest and the largest sum of each output channel."""


def refuse_products(node: Node, channel_axis: int) -> Refusal | None:
    """Return None if the C kernels can sum the node's products, else the reason."""
    found = served_sums(node, channel_axis)
    return found if isinstance(found, Refusal) else None


def served_sums(node: Node, channel_axis: int) -> SumRange | Refusal:
    """Return the range of each channel's sums, or why the C kernels cannot sum the products.

    Args:
        node: A convolution or a dense layer: input, weights, optional bias.
        channel_axis: The output channel axis of the weights.
    """
    if refusal := _refuse_types(node):
        return refusal
    range_, x = sums(node, channel_axis), node.input(0).type
    if x.quant is None or not node.output.type.is_quantized:
        return range_
    if x.dtype is DType.INT16:
        return _refuse_long_sums(node, range_, channel_axis) or range_
    if fits_int32(range_):
        return range_
    return Refusal(
        f"{node.op.name} has weights or a bias so large that its sums could exceed 32 bits."
    )


def _refuse_types(node: Node) -> Refusal | None:
    x, weights, bias = node.input(0).type, node.input(1), node.optional(2)
    name = node.op.name
    if bias is not None and not bias.is_constant:
        return Refusal(f"{name} supports only a constant bias.")
    kinds, y = {x.dtype, weights.type.dtype}, node.output.type
    if x.quant is None and kinds == {y.dtype} and y.dtype in NARROW_FLOATS:
        return None
    if x.quant is not None and [v.dtype for v in (x, weights.type, y)] == _SIXTEEN_BITS:
        return _refuse_sixteen_bits(node)
    output_dtype = DType.INT8 if y.is_quantized else DType.INT32
    if x.quant is None or kinds != {DType.INT8} or y.dtype is not output_dtype:
        given = f"input {x}, weights {weights.type} and output {node.output.type}"
        return Refusal(f"{name} supports f32 and quantized i8 or i16, but not {given}.")
    quant = weights.type.quant
    has_several = quant is not None and len(set(quant.zero_point)) > 1
    if has_several and not weights.is_constant:
        return Refusal(f"{name} supports computed weights only with a single zero point.")
    if node.rounding not in (Rounding.TFLM, Rounding.ONNX):
        rounding = "none" if node.rounding is None else node.rounding.value
        return Refusal(f"{name} does not support rounding '{rounding}'.")
    return None


_SIXTEEN_BITS = [DType.INT16, DType.INT8, DType.INT16]
"""Element types of input, weights and output for 16-bit activations."""

_LARGEST_RATIO = 2**7
"""The sums' scale divided by the output's scale must be less, as in TensorFlow Lite."""


def _refuse_sixteen_bits(node: Node) -> Refusal | None:
    name, weights = node.op.name, node.input(1).type
    if not can_fold_zero_point(node):
        return Refusal(f"{name} of i16 data supports only constant, symmetric weights.")
    if node.rounding is Rounding.TFLM16:
        scales = () if weights.quant is None else weights.quant.scale
        if node.input(0).type.scale * max(scales) >= node.output.type.scale * _LARGEST_RATIO:
            return Refusal(f"{name} of i16 data has an output scale far too small for its sums.")
        return None
    if node.rounding is not Rounding.TFLM:
        rounding = "none" if node.rounding is None else node.rounding.value
        return Refusal(f"{name} of i16 data does not support rounding '{rounding}'.")
    return None


def _refuse_long_sums(node: Node, range_: SumRange, channel_axis: int) -> Refusal | None:
    name = node.op.name
    if node.rounding is Rounding.TFLM16:
        largest = max(int(np.abs(bound).max()) for bound in range_)
        if largest >= REDUCED_LIMIT:
            return Refusal(
                f"{name} of i16 data has a bias so large that its sums could exceed 48 bits."
            )
        return None
    # Partial sums without the bias must fit as well.
    weights = centered_weights(node, channel_axis)
    alone = sum_range(np.zeros(len(weights), np.int64), weights, DType.INT16)
    if fits_int32(range_) and fits_int32(alone):
        return None
    return Refusal(
        f"{name} of i16 data has an int32 bias, and weights so large that its sums could exceed "
        "32 bits: give it an int64 bias."
    )


def centered_weights(node: Node, channel_axis: int) -> Array:
    """Return constant weights minus their zero points, int64, output channels first."""
    value = node.input(1)
    quant = value.type.quant
    weights = np.moveaxis(value.array, channel_axis, 0).astype(np.int64)
    if quant is None:
        return weights
    zero_points = np.asarray(quant.zero_point, np.int64)
    return weights - zero_points.reshape(-1, *[1] * (weights.ndim - 1))


def can_fold_zero_point(node: Node) -> bool:
    """Return whether the input's zero point can be folded into the bias.

    It can if the weights are constant. If they are quantized, their zero points must be 0, and the
    output must be quantized too.
    """
    weights = node.input(1)
    quant = weights.type.quant
    symmetric = quant is None or (not any(quant.zero_point) and node.output.type.is_quantized)
    return weights.is_constant and symmetric


def constant_bias(node: Node) -> Array | None:
    """Return the model's bias, flattened; None without a bias."""
    bias = node.optional(2)
    return None if bias is None else bias.array.ravel()


def bias_with_zero_point(node: Node, channel_axis: int) -> Array | None:
    """Return the bias with the input's zero point folded in; the weights must be constant."""
    x, bias = node.input(0).type, constant_bias(node)
    if x.quant is None:
        return bias
    return folded_bias(bias, centered_weights(node, channel_axis), x.zero_point)


def sums(node: Node, channel_axis: int) -> SumRange:
    """Return the smallest and the largest sum of each channel, with its bias; 0 for floats."""
    x, weights, bias = node.input(0).type, node.input(1), constant_bias(node)
    if x.quant is None:
        zeros = np.zeros(weights.type.shape[channel_axis], np.int64)
        return zeros, zeros
    if weights.is_constant:
        # These bounds also hold for windows that reach into padding: there, the input is its zero
        # point, one of the values of `x.dtype`.
        centered = centered_weights(node, channel_axis)
        return sum_range(folded_bias(bias, centered, x.zero_point), centered, x.dtype)
    outputs = weights.type.shape[channel_axis]
    start = np.zeros(outputs, np.int64) if bias is None else bias.astype(np.int64)
    most = weights.type.size // outputs * 255 * 255
    return start - most, start + most
