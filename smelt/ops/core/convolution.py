"""Conv2D and DepthwiseConv2D.

They follow the TensorFlow Lite 8-bit quantization specification: int8 weights, symmetric per output
channel; int32 bias with scale `input scale * weight scale`; int8 data with a zero point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Rounding, TensorType
from smelt.ir.budget import OPERATOR
from smelt.ir.row_window import RowWindow
from smelt.ops.arithmetic.fixed_point import (
    Activation,
    Requantizer,
    along_axis,
    convolution_scales,
    finish,
    wrap_int32,
)
from smelt.ops.case import Bias, Case, Data, Weights, onnx_cases, wide_cases
from smelt.ops.constraints import check_quantized_together, check_sums, sum_type
from smelt.ops.core.channel_products import DepthwiseChannels, MixingChannels
from smelt.ops.core.weights_rules import Conv2DWeights, DepthwiseWeights

Pair = tuple[int, int]
Padding2D = tuple[Pair, Pair]
"""((top, bottom), (left, right)) in pixels."""

NO_PADDING: Padding2D = ((0, 0), (0, 0))


def same_padding(size: Pair, window: Pair, stride: Pair, dilation: Pair = (1, 1)) -> Padding2D:
    """Return TensorFlow's SAME padding: the output has ceil(size / stride) pixels along each axis.

    If the padding of an axis is odd, the extra pixel comes at the end.
    """

    def axis(n: int, k: int, s: int, d: int) -> Pair:
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        return total // 2, total - total // 2

    return (
        axis(size[0], window[0], stride[0], dilation[0]),
        axis(size[1], window[1], stride[1], dilation[1]),
    )


def window_output(
    size: Pair, window: Pair, stride: Pair, padding: Padding2D, dilation: Pair = (1, 1)
) -> Pair:
    """Return height and width of the output of a window that slides over a padded image."""

    def axis(n: int, k: int, s: int, pad: Pair, d: int) -> int:
        return (n + sum(pad) - (k - 1) * d - 1) // s + 1

    height = axis(size[0], window[0], stride[0], padding[0], dilation[0])
    width = axis(size[1], window[1], stride[1], padding[1], dilation[1])
    if height < 1 or width < 1:
        raise ModelError(
            f"a window of {window[0]}x{window[1]} with dilation {dilation} does not fit into an "
            f"image of {size[0]}x{size[1]} with padding {padding}"
        )
    return height, width


def patches(
    x: Array, window: Pair, stride: Pair, padding: Padding2D, dilation: Pair, fill: int | float
) -> Array:
    """Return the windows of an image: `[n, h, w, c]` to `[n, oh, ow, kh, kw, c]`."""
    n, height, width, c = x.shape
    (top, bottom), (left, right) = padding
    padded = np.full((n, top + height + bottom, left + width + right, c), fill, x.dtype)
    padded[:, top : top + height, left : left + width] = x
    count = window_output((height, width), window, stride, padding, dilation)
    image, row, pixel, channel = padded.strides
    between = row * stride[0], pixel * stride[1]
    within = row * dilation[0], pixel * dilation[1]
    # numpy's own sliding_window_view takes longer to set up than most images take to read.
    shape, strides = (n, *count, *window, c), (image, *between, *within, channel)
    return np.ndarray(shape, x.dtype, buffer=padded, strides=strides)


def padded_size(x: TensorType, padding: Sequence[Sequence[int]]) -> int:
    """Return the number of elements of channels-last images with their padding."""
    spatial = zip(x.shape[1:-1], padding, strict=True)
    return x.shape[0] * x.shape[-1] * prod(n + sum(pair) for n, pair in spatial)


def is_pointwise(axis: int | None, window: Pair, stride: Pair, padding: Padding2D) -> bool:
    """Return whether windows are one element wide and take every element along an axis of NHWC."""
    if axis not in (1, 2):
        return axis == 0
    return (window[axis - 1], stride[axis - 1], padding[axis - 1]) == (1, 1, (0, 0))


def row_window(
    axis: int, window: Pair, stride: Pair, padding: Padding2D, dilation: Pair
) -> RowWindow | None:
    """Return the window along an axis of `[n,h,w,c]`; None if it does not slide along that axis."""
    if axis not in (1, 2):
        return None
    i = axis - 1
    return RowWindow((window[i] - 1) * dilation[i] + 1, stride[i], padding[i][0])


def padded_rows(padding: Padding2D, axis: int, before: int, after: int) -> Padding2D:
    """Return the padding with other numbers along axis 1 or 2 of `[n,h,w,c]`."""
    rows = before, after
    return (rows, padding[1]) if axis == 1 else (padding[0], rows)


@dataclass(frozen=True)
class _Convolution(Op):
    """Fields and quantized arithmetic that both convolutions share.

    With `sums`, operands are quantized and the output is the int32 accumulator, not requantized.
    """

    stride: Pair = (1, 1)
    padding: Padding2D = NO_PADDING
    dilation: Pair = (1, 1)
    activation: Activation = Activation.NONE
    sums: bool = False

    quantized_weights = True

    @property
    @override
    def fused_activation(self) -> Activation:
        return self.activation

    @override
    def with_activation(self, activation: Activation) -> Op:
        return replace(self, activation=activation)

    def check(self, node: Node) -> None:
        """Check that input, weights and output are all quantized, or none; sums never are."""
        if self.sums:
            check_sums(node, self.activation is not Activation.NONE)
            return
        check_quantized_together(node)
        if node.output.type.is_quantized and node.rounding is None:
            raise ModelError(f"{node.origin}: a quantized {self.name} needs a rounding mode")

    def overhead(self, node: Node) -> int:
        """Return the number of elements of the padded input."""
        return padded_size(node.input(0).type, self.padding)

    def windows(self, x: Array, kernel: Pair) -> Array:
        """Return the elements that each output's taps use: `[n,h,w,c]` to `[n,oh,ow,kh,kw,c]`."""
        return patches(x, kernel, self.stride, self.padding, self.dilation, 0)

    def accumulate(self, x: Array, weights: Array) -> Array:
        """Return sums of products in float64, which is exact for integers below 2^53."""
        raise NotImplementedError

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, weights, bias = (*inputs, None)[:3]
        if x is None or weights is None:
            raise ModelError(f"{node.origin}: {self.name} needs an input and weights")
        output = node.output.type
        if output.quant is None and not self.sums:
            acc = self.accumulate(x, weights) + (0.0 if bias is None else bias)
            return (np.clip(acc, *self.activation.limits).astype(output.dtype.numpy),)
        centered = x.astype(np.int64) - node.input(0).type.zero_point
        quant = node.input(1).type.quant
        zero_points = 0 if quant is None else along_axis(quant, weights.ndim)[1]
        acc = self.accumulate(centered, weights.astype(np.int64) - zero_points)
        acc = np.rint(acc).astype(np.int64)
        if bias is not None:
            acc = acc + bias.astype(np.int64)
        if self.sums:
            return (wrap_int32(acc).astype(np.int32),)
        rounding = node.rounding or Rounding.TFLM
        scales = convolution_scales(node.input(0).type, node.input(1).type, output, rounding)
        requantize = Requantizer(scales, rounding)
        return (finish(acc, requantize, self.activation, output),)

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether windows are one element high, or wide, along the axis of rows."""
        height, width = node.input(1).type.shape[1:3]
        return is_pointwise(axes[0], (height, width), self.stride, self.padding)

    @override
    def row_window(self, node: Node, axis: int) -> RowWindow | None:
        height, width = node.input(1).type.shape[1:3]
        return row_window(axis, (height, width), self.stride, self.padding, self.dilation)

    @override
    def with_row_padding(self, axis: int, before: int, after: int) -> Op:
        return replace(self, padding=padded_rows(self.padding, axis, before, after))


@dataclass(frozen=True)
class Conv2D(_Convolution):
    """2-D convolution: input `[n,h,w,i]`, weights `[o,kh,kw,i/groups]`, bias `[o]` (optional)."""

    groups: int = 1

    channel_rule = MixingChannels()
    weights_rule = Conv2DWeights()

    def overhead(self, node: Node) -> int:
        """Return the padded input's elements, plus a fixed cost for the product of each group."""
        return super().overhead(node) + self.groups * OPERATOR

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, weights = _operands(self, inputs)
        outputs, height, width, depth = weights.shape
        if x.shape[3] != depth * self.groups or outputs % self.groups:
            raise ModelError(
                f"Conv2D of {x} with {self.groups} groups cannot use weights {weights}: they must "
                "be [outputs, height, width, channels / groups], with outputs a multiple of groups"
            )
        _check_bias(self, inputs, outputs)
        spatial = window_output(
            (x.shape[1], x.shape[2]), (height, width), self.stride, self.padding, self.dilation
        )
        return (TensorType((x.shape[0], *spatial, outputs), sum_type(x, self.sums)),)

    def macs(self, node: Node) -> int:
        """Return the multiply-accumulates, including those of padding."""
        return node.output.type.size * node.input(1).type.size // node.output.type.shape[3]

    @override
    def accumulate(self, x: Array, weights: Array) -> Array:
        outputs, height, width, depth = weights.shape
        windows = self.windows(x, (height, width))
        n, oh, ow = windows.shape[:3]
        per_group = outputs // self.groups
        result = np.empty((n, oh, ow, outputs), np.float64)
        for group in range(self.groups):
            columns = windows[..., group * depth : (group + 1) * depth]
            matrix = columns.reshape(n * oh * ow, -1).astype(np.float64)
            chosen = slice(group * per_group, (group + 1) * per_group)
            kernel = weights[chosen].reshape(per_group, -1).astype(np.float64)
            result[..., chosen] = (matrix @ kernel.T).reshape(n, oh, ow, per_group)
        return result


@dataclass(frozen=True)
class DepthwiseConv2D(_Convolution):
    """Depthwise convolution: input `[n,h,w,c]`, weights `[1,kh,kw,c*m]`, bias `[c*m]`.

    Output channel `c*m + j` is input channel `c`, filtered by the j-th of its `m` filters.
    """

    channel_rule = DepthwiseChannels()
    weights_rule = DepthwiseWeights()

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, weights = _operands(self, inputs)
        one, height, width, outputs = weights.shape
        if one != 1 or not x.shape[3] or outputs % x.shape[3]:
            raise ModelError(
                f"DepthwiseConv2D of {x} cannot use weights {weights}: they must be "
                "[1, height, width, outputs], with outputs a multiple of the input's channels"
            )
        _check_bias(self, inputs, outputs)
        spatial = window_output(
            (x.shape[1], x.shape[2]), (height, width), self.stride, self.padding, self.dilation
        )
        return (TensorType((x.shape[0], *spatial, outputs), sum_type(x, self.sums)),)

    def macs(self, node: Node) -> int:
        """Return the multiply-accumulates, including those of padding."""
        _, height, width, _ = node.input(1).type.shape
        return node.output.type.size * height * width

    @override
    def accumulate(self, x: Array, weights: Array) -> Array:
        _, height, width, outputs = weights.shape
        windows = self.windows(x, (height, width))
        multiplier = outputs // x.shape[3]
        windows = np.repeat(windows.astype(np.float64), multiplier, axis=5)
        return np.einsum("nyxhwc,hwc->nyxc", windows, weights[0].astype(np.float64))


def _operands(op: Op, inputs: Sequence[TensorType | None]) -> tuple[TensorType, TensorType]:
    x, weights = inputs[0], inputs[1]
    if x is None or weights is None or len(x.shape) != 4 or len(weights.shape) != 4:
        raise ModelError(f"{op.name} needs a 4-D input and 4-D weights, got {x} and {weights}")
    return x, weights


def _check_bias(op: Op, inputs: Sequence[TensorType | None], outputs: int) -> None:
    bias = inputs[2] if len(inputs) > 2 else None
    if bias is not None and bias.shape != (outputs,):
        raise ModelError(
            f"{op.name} with {outputs} output channels has a bias {bias}; its shape must be "
            f"[{outputs}]"
        )
    if bias is not None and bias.dtype not in (DType.INT32, DType.INT64, DType.FLOAT32):
        raise ModelError(f"{op.name} has a bias {bias}; it must be i32, i64 or f32")


def _conv(
    name: str, x: tuple[int, ...], w: tuple[int, ...], op: Conv2D, *, bias: bool = True
) -> Case:
    arguments = (Data(x), Weights(w, axis=0), Bias(w[0]) if bias else None)
    return Case(name, op, arguments)


def _depthwise(name: str, x: tuple[int, ...], w: tuple[int, ...], op: DepthwiseConv2D) -> Case:
    return Case(name, op, (Data(x), Weights(w, axis=3), Bias(w[3])))


_R = Activation.RELU
_CASES = (
    _conv("pointwise", (1, 5, 4, 16), (8, 1, 1, 16), Conv2D(activation=_R)),
    _conv("pointwise_odd", (1, 3, 3, 7), (5, 1, 1, 7), Conv2D()),
    _conv("pointwise_stride2", (1, 7, 5, 8), (9, 1, 1, 8), Conv2D(stride=(2, 2))),
    _conv("same_3x3", (1, 6, 7, 4), (6, 3, 3, 4), Conv2D(padding=((1, 1), (1, 1)), activation=_R)),
    _conv("valid_3x3", (1, 6, 7, 3), (4, 3, 3, 3), Conv2D()),
    _conv("no_bias", (1, 5, 5, 2), (3, 3, 3, 2), Conv2D(), bias=False),
    _conv(
        "first_layer_stride2",
        (1, 9, 9, 3),
        (8, 3, 3, 3),
        Conv2D(stride=(2, 2), padding=((0, 1), (0, 1)), activation=Activation.RELU6),
    ),
    _conv(
        "wide_10x4",
        (1, 12, 9, 1),
        (8, 10, 4, 1),
        Conv2D(stride=(2, 2), padding=((4, 5), (1, 1)), activation=_R),
    ),
    _conv("asymmetric", (1, 5, 8, 3), (3, 2, 3, 3), Conv2D(padding=((1, 0), (2, 1)))),
    _conv("dilated", (1, 9, 9, 4), (4, 3, 3, 4), Conv2D(dilation=(2, 3), padding=((2, 2), (3, 3)))),
    _conv("grouped", (1, 5, 5, 8), (6, 3, 3, 4), Conv2D(groups=2, padding=((1, 1), (1, 1)))),
    _conv("row_1x5", (1, 1, 16, 4), (6, 1, 5, 4), Conv2D(padding=((0, 0), (2, 2)))),
    _conv("batch", (2, 4, 4, 3), (5, 3, 3, 3), Conv2D(padding=((1, 1), (1, 1)))),
    _conv("one_output", (1, 4, 4, 5), (1, 3, 3, 5), Conv2D()),
    _depthwise(
        "same_3x3",
        (1, 6, 7, 8),
        (1, 3, 3, 8),
        DepthwiseConv2D(padding=((1, 1), (1, 1)), activation=_R),
    ),
    _depthwise(
        "stride2",
        (1, 8, 8, 4),
        (1, 3, 3, 4),
        DepthwiseConv2D(stride=(2, 2), padding=((0, 1), (0, 1))),
    ),
    _depthwise("valid_5x5", (1, 7, 7, 3), (1, 5, 5, 3), DepthwiseConv2D()),
    _depthwise(
        "multiplier", (1, 5, 5, 3), (1, 3, 3, 12), DepthwiseConv2D(padding=((1, 1), (1, 1)))
    ),
    _depthwise(
        "from_one_channel",
        (1, 12, 9, 1),
        (1, 10, 8, 8),
        DepthwiseConv2D(stride=(2, 2), padding=((4, 4), (3, 4)), activation=_R),
    ),
    _depthwise(
        "dilated",
        (1, 9, 9, 4),
        (1, 3, 3, 4),
        DepthwiseConv2D(dilation=(2, 2), padding=((2, 2), (2, 2))),
    ),
    _depthwise(
        "one_column",
        (1, 4, 1, 4),
        (1, 3, 1, 8),
        DepthwiseConv2D(stride=(1, 2), padding=((1, 1), (0, 0))),
    ),
    _depthwise("column_5x1", (1, 9, 1, 6), (1, 5, 1, 6), DepthwiseConv2D()),
    _depthwise("batch", (2, 4, 4, 3), (1, 3, 3, 3), DepthwiseConv2D()),
    _depthwise(
        "one_channel", (1, 5, 4, 1), (1, 3, 3, 1), DepthwiseConv2D(padding=((1, 1), (1, 1)))
    ),
)
CASES = (
    *_CASES,
    *onnx_cases(
        _CASES,
        "pointwise",
        "same_3x3",
        "no_bias",
        "first_layer_stride2",
        "grouped",
        "stride2",
        "multiplier",
        "from_one_channel",
        "batch",
        "one_channel",
    ),
    *wide_cases(
        _CASES,
        "pointwise",
        "same_3x3",
        "no_bias",
        "first_layer_stride2",
        "dilated",
        "grouped",
        "one_output",
        "stride2",
        "multiplier",
        "from_one_channel",
        "batch",
        "one_channel",
    ),
)
