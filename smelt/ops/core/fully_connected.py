"""FullyConnected: a dense layer.

It follows the TensorFlow Lite 8-bit quantization specification, with scales as TensorFlow Lite
Micro computes them (see `fully_connected_scales`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError, UnsupportedError
from smelt.ir import Array, DType, Node, Op, Rounding, TensorType
from smelt.ir.axes import Axes, along_last
from smelt.ir.channels import channels
from smelt.ir.weights import WeightsRule
from smelt.ops.arithmetic.fixed_point import (
    Activation,
    Requantizer,
    convolution_scales,
    finish,
    wrap_int32,
)
from smelt.ops.case import Bias, Case, Data, Weights, onnx_cases, wide_cases
from smelt.ops.constraints import arrays, check_quantized_together, check_sums, operands, sum_type
from smelt.ops.core.channel_products import MixingChannels


def fully_connected_scales(
    x: TensorType, weights: TensorType, output: TensorType, rounding: Rounding | None = None
) -> tuple[float, ...]:
    """Return the accumulator's scale divided by the output's scale: one, or one for each output.

    If the weights have a single scale, the product of the input's and weights' scales is rounded to
    float32 first. If they have one for each output, the product is in double precision. With ONNX's
    rounding, the scales are computed as for a convolution.
    """
    if weights.quant is None:
        raise ValueError(f"weights {weights} are not quantized")
    if rounding is Rounding.ONNX:
        return convolution_scales(x, weights, output, rounding)
    scales = weights.quant.scale
    if len(scales) == 1:
        product = np.float32(x.scale) * np.float32(scales[0])
        return (float(product) / output.scale,)
    return tuple(x.scale * scale / output.scale for scale in scales)


class DenseWeights(WeightsRule["FullyConnected"]):
    """Weights rule of dense layers: weights `[O, I]`, rows of I elements."""

    @override
    def output_axis(self, weights: TensorType) -> int:
        return 0

    @override
    def groups(self, node: Node[FullyConnected]) -> int:
        return 1

    @override
    def input_channels(self, node: Node[FullyConnected]) -> Array:
        return np.arange(node.input(1).type.shape[1]) % channels(node.input(0).type)

    @override
    def keeps_channels(self, node: Node[FullyConnected]) -> bool:
        """Return whether every row begins with the first channel."""
        return node.input(1).type.shape[1] % channels(node.input(0).type) == 0

    @override
    def uses_all_weights(self, node: Node[FullyConnected]) -> bool:
        return True

    @override
    def windows(self, node: Node[FullyConnected], x: Array) -> Array:
        return x.reshape(-1, 1, node.input(1).type.shape[1])

    @override
    def scales(self, node: Node[FullyConnected]) -> tuple[float, ...]:
        x, weights, y = node.input(0).type, node.input(1).type, node.output.type
        return fully_connected_scales(x, weights, y, node.rounding)


@dataclass(frozen=True)
class FullyConnected(Op):
    """Dense layer: input of rows of I elements, weights `[O, I]`, bias `[O]` (optional).

    The output is `[rows, O]`; with `keep_dims`, it is the input's shape with O as its last
    dimension. Weights may be computed at run time. With `sums`, operands are quantized and the
    output is the int32 accumulator, not requantized.
    """

    activation: Activation = Activation.NONE
    keep_dims: bool = False
    sums: bool = False

    channel_rule = MixingChannels()
    weights_rule = DenseWeights()
    quantized_weights = True

    @property
    @override
    def fused_activation(self) -> Activation:
        return self.activation

    @override
    def with_activation(self, activation: Activation) -> Op:
        return replace(self, activation=activation)

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, weights = operands(self, inputs, 2)
        if len(weights.shape) != 2:
            raise ModelError(f"FullyConnected needs weights [outputs, inputs], got {weights}")
        outputs, depth = weights.shape
        last = x.shape[-1] if x.shape else 1
        if depth == 0 or x.size % depth or (self.keep_dims and last != depth):
            raise ModelError(
                f"FullyConnected of {x} cannot use weights {weights}: rows of the input must have "
                f"{depth} elements"
            )
        bias = inputs[2] if len(inputs) > 2 else None
        if bias is not None and bias.size != outputs:
            raise ModelError(
                f"FullyConnected with {outputs} outputs has a bias {bias}; it needs {outputs} "
                "elements"
            )
        if bias is not None and bias.dtype not in (DType.INT32, DType.INT64, DType.FLOAT32):
            raise ModelError(f"FullyConnected has a bias {bias}; it must be i32, i64 or f32")
        rows = x.shape[:-1] if self.keep_dims else (x.size // depth,)
        return (TensorType((*rows, outputs), sum_type(x, self.sums)),)

    def check(self, node: Node) -> None:
        """Check that input, weights and output are all quantized, or none, in supported types."""
        if self.sums:
            check_sums(node, self.activation is not Activation.NONE)
            return
        check_quantized_together(node)
        x, weights = node.input(0).type, node.input(1).type
        if weights.quant is None:
            return
        if x.dtype not in (DType.INT8, DType.INT16) or weights.dtype is not DType.INT8:
            raise UnsupportedError(
                f"{node.origin}: FullyConnected does not support quantized {x.dtype.value} with "
                f"weights of {weights.dtype.value}; convert the model with int8 quantization"
            )
        if weights.quant.axis not in (None, 0):
            raise ModelError(
                f"{node.origin}: weights {weights} are quantized along axis {weights.quant.axis}; "
                "they must be quantized along axis 0, or per tensor"
            )
        per_channel = len(weights.quant.scale) > 1 and any(weights.quant.zero_point)
        if per_channel and node.rounding is not Rounding.ONNX:
            raise ModelError(
                f"{node.origin}: weights quantized per channel must be symmetric: zero points 0"
            )
        if node.rounding is None:
            raise ModelError(f"{node.origin}: a quantized FullyConnected needs a rounding mode")

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, weights = arrays(node, inputs, 2)
        bias = inputs[2] if len(inputs) > 2 else None
        y, quant = node.output.type, node.input(1).type.quant
        rows = x.reshape(-1, weights.shape[1]).astype(np.float64)
        if quant is None:
            acc = rows @ weights.T.astype(np.float64) + (0.0 if bias is None else bias.ravel())
            result = np.clip(acc, *self.activation.limits).astype(y.dtype.numpy)
            return (result.reshape(y.shape),)
        centered = weights.T.astype(np.float64) - np.asarray(quant.zero_point, np.float64)
        acc = np.rint((rows - node.input(0).type.zero_point) @ centered).astype(np.int64)
        if bias is not None:
            acc = acc + bias.ravel().astype(np.int64)
        if self.sums:
            return (wrap_int32(acc).astype(np.int32).reshape(y.shape),)
        rounding = node.rounding or Rounding.TFLM
        scales = fully_connected_scales(node.input(0).type, node.input(1).type, y, rounding)
        requantize = Requantizer(scales, rounding)
        return (finish(acc, requantize, self.activation, y).reshape(y.shape),)

    def macs(self, node: Node) -> int:
        """Return rows times inputs times outputs."""
        return node.output.type.size * node.input(1).type.shape[1]

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether rows lie along another axis than the last, which is summed over."""
        rank = len(node.input(0).type.shape)
        return axes[0] is not None and axes[0] != rank - 1

    def axes_rule(self, node: Node) -> Axes | None:
        """Return that all axes before the last may be permuted; only with `keep_dims`."""
        return along_last(node) if self.keep_dims else None


def _dense(
    name: str,
    x: tuple[int, ...],
    w: tuple[int, int],
    *,
    axis: int | None = None,
    activation: Activation = Activation.NONE,
    bias: bool = True,
    keep_dims: bool = False,
) -> Case:
    arguments = (Data(x), Weights(w, axis), Bias(w[0]) if bias else None)
    return Case(name, FullyConnected(activation, keep_dims), arguments)


_CASES = (
    _dense("classifier", (1, 16), (10, 16)),
    _dense("odd", (1, 13), (7, 13), activation=Activation.RELU),
    _dense("per_channel", (1, 16), (6, 16), axis=0, activation=Activation.RELU6),
    _dense("per_channel_odd", (1, 9), (5, 9), axis=0),
    _dense("no_bias", (1, 12), (4, 12), bias=False),
    _dense("one_output", (1, 5), (1, 5)),
    _dense("one_output_per_channel", (1, 5), (1, 5), axis=0),
    _dense("one_input", (3, 1), (4, 1)),
    _dense("batch", (5, 8), (6, 8), activation=Activation.RELU_N1_TO_1),
    _dense("rank1", (8,), (3, 8)),
    _dense("flattens", (1, 2, 3, 4), (5, 24)),
    _dense("splits_rows", (2, 12), (3, 8)),
    _dense("keep_dims", (2, 3, 4), (5, 4), keep_dims=True),
    _dense("wide", (1, 130), (33, 130), axis=0),
    Case(
        "small_input_range",
        FullyConnected(),
        (Data((1, 8), -1e-3, 2e-3), Weights((4, 8)), Bias(4)),
    ),
    Case("positive_input", FullyConnected(), (Data((2, 8), 0.0, 50.0), Weights((4, 8)), Bias(4))),
    Case(
        "computed_weights",
        FullyConnected(),
        (Data((2, 6)), Data((4, 6), -0.3, 0.7), None),
    ),
)
CASES = (
    *_CASES,
    *onnx_cases(
        _CASES,
        "classifier",
        "per_channel",
        "batch",
        "wide",
        "small_input_range",
        "positive_input",
        "computed_weights",
    ),
    *wide_cases(
        _CASES,
        "classifier",
        "per_channel",
        "no_bias",
        "batch",
        "keep_dims",
        "wide",
        "small_input_range",
        "positive_input",
    ),
    Case(
        "wide_long_sums",
        FullyConnected(),
        (Data((1, 1400)), Weights((3, 1400), axis=0), Bias(3)),
        (DType.INT16,),
        Rounding.TFLM16,
    ),
)
