"""Conv3D and ConvTranspose: convolutions with weights `[*kernel,i,o]`, a matrix for each tap.

ConvTranspose can also be quantized, as the TensorFlow Lite 8-bit quantization specification says:
int8 weights, symmetric per output channel; int32 bias with scale `input scale * weight scale`. Its
data may also be int16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Rounding, TensorType
from smelt.ir.budget import OPERATOR
from smelt.ops.arithmetic.fixed_point import (
    Activation,
    Requantizer,
    along_axis,
    convolution_scales,
    finish,
)
from smelt.ops.case import (
    FLOAT_AND_INT8,
    Bias,
    Case,
    CaseOperand,
    Data,
    Weights,
    onnx_cases,
    wide_cases,
)
from smelt.ops.constraints import arrays, operands, quantized, same_dtype
from smelt.ops.core.channel_products import TransposedChannels
from smelt.ops.core.convolution import padded_size
from smelt.ops.core.weights_rules import TapWeights, TransposedWeights

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ConvolutionND(Op):
    """Base of both: input `[n,*size,i]`, weights `[*kernel,i/groups,o]`, bias `[o]` (optional).

    `stride`, `padding` (before, after) and `dilation` have an entry for each axis of the image.
    """

    stride: tuple[int, ...]
    padding: Pairs
    dilation: tuple[int, ...]
    groups: int = 1
    activation: Activation = Activation.NONE

    weights_rule = TapWeights()

    @property
    @override
    def fused_activation(self) -> Activation:
        return self.activation

    @override
    def with_activation(self, activation: Activation) -> Op:
        return replace(self, activation=activation)

    def size(self, axis: int, size: int, window: int) -> int:
        """Return the size of the output along an axis of the image.

        Args:
            axis: index among the axes of the image.
            size: size of the input along it.
            window: distance from the first tap to the last, plus one.
        """
        raise NotImplementedError(f"{self.name}.size")

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, weights = operands(self, inputs, 2)
        bias = inputs[2] if len(inputs) > 2 else None
        rank = len(x.shape) - 2
        fields = (self.stride, self.padding, self.dilation)
        if rank < 1 or len(weights.shape) != rank + 2 or any(len(f) != rank for f in fields):
            raise ModelError(
                f"{self.name} of {x} has weights {weights}, stride {self.stride}, padding "
                f"{self.padding} and dilation {self.dilation}; an input of {rank + 2} dimensions "
                f"needs weights of as many, and {rank} entries in each of the others"
            )
        if min(*self.stride, *self.dilation, self.groups) < 1 or x.size == 0:
            raise ModelError(
                f"{self.name} of {x} has stride {self.stride}, dilation {self.dilation} and "
                f"{self.groups} groups; all must be at least 1, and the input must not be empty"
            )
        depth, outputs = weights.shape[-2:]
        if x.shape[-1] != depth * self.groups or outputs % self.groups or weights.size == 0:
            raise ModelError(
                f"{self.name} of {x} with {self.groups} groups cannot use weights {weights}: they "
                "must be [*kernel, channels / groups, outputs], with outputs a multiple of groups"
            )
        if bias is not None and bias.shape != (outputs,):
            raise ModelError(
                f"{self.name} with {outputs} output channels has a bias {bias}; its shape must be "
                f"[{outputs}]"
            )
        size = tuple(
            self.size(axis, x.shape[axis + 1], (weights.shape[axis] - 1) * self.dilation[axis] + 1)
            for axis in range(rank)
        )
        if min(size) < 1:
            raise ModelError(
                f"{self.name} of {x} and weights {weights} has an empty output of {list(size)}"
            )
        return (TensorType((x.shape[0], *size, outputs), self._dtype(x, weights, bias)),)

    def _dtype(self, x: TensorType, weights: TensorType, bias: TensorType | None) -> DType:
        """Return the output's element type. For float16 operands, the bias may be float32."""
        wide = x.dtype is DType.FLOAT16 and bias is not None and bias.dtype is DType.FLOAT32
        return same_dtype(self, [t for t in (x, weights, *(() if wide else (bias,))) if t])

    @override
    def check(self, node: Node) -> None:
        quantized(node, ())

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, weights = arrays(node, inputs, 2)
        bias = inputs[2] if len(inputs) > 2 else None
        y, quant = node.output.type, node.input(1).type.quant
        if y.quant is not None:
            x = x.astype(np.int64) - node.input(0).type.zero_point
            zero_points = 0 if quant is None else along_axis(quant, weights.ndim)[1]
            weights = weights.astype(np.int64) - zero_points
        depth, outputs = weights.shape[-2], weights.shape[-1] // self.groups
        # float64 is exact for integers below 2^53.
        total = np.zeros(y.shape, np.float64)
        for group in range(self.groups):
            own = slice(group * depth, (group + 1) * depth)
            made = slice(group * outputs, (group + 1) * outputs)
            total[..., made] = self.accumulate(
                x[..., own].astype(np.float64), weights[..., made].astype(np.float64), y.shape[1:-1]
            )
        if bias is not None:
            total += bias
        if y.quant is not None:
            rounding = node.rounding or Rounding.TFLM
            types = (node.input(0).type, node.input(1).type, y)
            requantize = Requantizer(convolution_scales(*types, rounding), rounding)
            return (finish(np.rint(total).astype(np.int64), requantize, self.activation, y),)
        return (np.clip(total, *self.activation.limits).astype(y.dtype.numpy),)

    def overhead(self, node: Node) -> int:
        """Return the padded image's elements, plus a fixed cost for each tap of each group."""
        taps = prod(node.input(1).type.shape[:-2])
        padded = padded_size(self._padded(node), [(abs(a), abs(b)) for a, b in self.padding])
        return self.groups * taps * OPERATOR + padded

    def _padded(self, node: Node) -> TensorType:
        """Return the type of the image that padding is added to or removed from."""
        return node.input(0).type

    def accumulate(self, x: Array, weights: Array, size: Sequence[int]) -> Array:
        """Return the sums of products of one group, for an output image of that size."""
        raise NotImplementedError(f"{self.name}.accumulate")

    def windows(self, x: Array, kernel: Sequence[int]) -> Array:
        """Return the elements that each output's taps use: `[n,*size,i]` to `[n,*size,taps,i]`.

        Taps outside of the input get 0.
        """
        raise NotImplementedError(f"{self.name}.windows")

    def _taps(self, kernel: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return each tap's index, and its offset from the first tap."""
        return [
            (tap, tuple(t * d for t, d in zip(tap, self.dilation, strict=True)))
            for tap in product(*map(range, kernel))
        ]


@dataclass(frozen=True)
class Conv3D(ConvolutionND):
    """3-D convolution of images `[n,d,h,w,i]`."""

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        if len(self.stride) != 3 or min(map(min, self.padding), default=0) < 0:
            raise ModelError(
                f"Conv3D has stride {self.stride} and padding {self.padding}; it needs 3 strides, "
                "and padding that is not negative"
            )
        return super().infer(inputs)

    def macs(self, node: Node) -> int:
        """Return the multiply-accumulates, including those of padding."""
        return node.output.type.size * prod(node.input(1).type.shape[:-1])

    @override
    def size(self, axis: int, size: int, window: int) -> int:
        return (size + sum(self.padding[axis]) - window) // self.stride[axis] + 1

    @override
    def accumulate(self, x: Array, weights: Array, size: Sequence[int]) -> Array:
        padded = np.pad(x, ((0, 0), *self.padding, (0, 0)))
        total = np.zeros((x.shape[0], *size, weights.shape[-1]))
        for tap, begin in self._taps(weights.shape[:-2]):
            steps = zip(begin, size, self.stride, strict=True)
            window = tuple(slice(b, b + (n - 1) * s + 1, s) for b, n, s in steps)
            total += padded[(slice(None), *window)] @ weights[tap]
        return total


@dataclass(frozen=True)
class ConvTranspose(ConvolutionND):
    """Transposed convolution along any number of axes.

    Each input pixel is multiplied by every tap. The product is added to the output pixel at
    `stride` times the input pixel's position plus the tap's offset. Then `padding` pixels are
    removed from the border, or added if it is negative.
    """

    channel_rule = TransposedChannels()
    weights_rule = TransposedWeights()
    quantized_weights = True

    @override
    def _dtype(self, x: TensorType, weights: TensorType, bias: TensorType | None) -> DType:
        # The bias of quantized data has more bits than the data.
        if not x.dtype.is_integer:
            return super()._dtype(x, weights, bias)
        if weights.dtype is not DType.INT8 or x.dtype not in (DType.INT8, DType.INT16):
            raise ModelError(
                f"{self.name} of {x} cannot use weights {weights}: quantized weights must be i8, "
                "and data i8 or i16"
            )
        if bias is not None and bias.dtype not in (DType.INT32, DType.INT64):
            raise ModelError(f"{self.name} of {x} has a bias {bias}; it must be i32 or i64")
        return x.dtype

    def check(self, node: Node) -> None:
        """Check that input, weights and output are all quantized, or none of them."""
        is_quantized = quantized(node, (DType.INT8, DType.INT16))
        weights = node.input(1).type
        if weights.is_quantized != is_quantized:
            raise ModelError(
                f"{node.origin}: input {node.input(0).type} and weights {weights} must both be "
                "quantized, or neither"
            )
        if is_quantized and node.rounding is None:
            raise ModelError(f"{node.origin}: a quantized {self.name} needs a rounding mode")

    def macs(self, node: Node) -> int:
        """Return the multiply-accumulates, including those of pixels that `padding` removes."""
        weights = node.input(1).type
        return node.input(0).type.size * weights.size // weights.shape[-2] // self.groups

    @override
    def _padded(self, node: Node) -> TensorType:
        return node.output.type

    @override
    def size(self, axis: int, size: int, window: int) -> int:
        return (size - 1) * self.stride[axis] + window - sum(self.padding[axis])

    @override
    def accumulate(self, x: Array, weights: Array, size: Sequence[int]) -> Array:
        full = [n + sum(pair) for n, pair in zip(size, self.padding, strict=True)]
        total = np.zeros((x.shape[0], *full, weights.shape[-1]))
        for tap, begin in self._taps(weights.shape[:-2]):
            steps = zip(begin, x.shape[1:-1], self.stride, strict=True)
            window = tuple(slice(b, b + (n - 1) * s + 1, s) for b, n, s in steps)
            total[(slice(None), *window)] += x @ weights[tap]
        return self._cut(total)

    @override
    def windows(self, x: Array, kernel: Sequence[int]) -> Array:
        steps = list(zip(x.shape[1:-1], self.stride, self.dilation, kernel, strict=True))
        full = [(n - 1) * s + (k - 1) * d + 1 for n, s, d, k in steps]
        met = np.zeros((x.shape[0], *full, prod(kernel), x.shape[-1]), x.dtype)
        for index, (_, begin) in enumerate(self._taps(kernel)):
            spans = zip(begin, steps, strict=True)
            window = tuple(slice(b, b + (n - 1) * s + 1, s) for b, (n, s, _, _) in spans)
            met[(slice(None), *window, index)] = x
        return self._cut(met)

    def _cut(self, image: Array) -> Array:
        """Apply `padding` to an image `[n,*size,...]`: remove its border, or extend it by 0."""
        for axis, (before, after) in enumerate(self.padding, start=1):
            extra = [(0, 0)] * image.ndim
            extra[axis] = max(-before, 0), max(-after, 0)
            image = np.pad(image, extra)
            kept = slice(max(before, 0), image.shape[axis] - max(after, 0))
            image = image[(slice(None),) * axis + (kept,)]
        return image


def _case(name: str, op: ConvolutionND, x: tuple[int, ...], *arguments: CaseOperand) -> Case:
    dtypes = FLOAT_AND_INT8 if isinstance(op, ConvTranspose) else (DType.FLOAT32,)
    return Case(name, op, (Data(x), *arguments), dtypes)


def _transposed(
    name: str,
    x: tuple[int, ...],
    weights: tuple[int, ...],
    *,
    stride: tuple[int, ...],
    padding: Pairs | None = None,
    dilation: tuple[int, ...] | None = None,
    groups: int = 1,
    activation: Activation = Activation.NONE,
) -> Case:
    rank = len(stride)
    op = ConvTranspose(
        stride, padding or ((0, 0),) * rank, dilation or (1,) * rank, groups, activation
    )
    return _case(name, op, x, Weights(weights, axis=rank + 1), Bias(weights[-1]))


_CASES = (
    _case(
        "same_3x3x3",
        Conv3D((1, 1, 1), ((1, 1), (1, 1), (1, 1)), (1, 1, 1)),
        (1, 3, 4, 5, 3),
        Weights((3, 3, 3, 3, 6)),
        Bias(6),
    ),
    _case(
        "strided",
        Conv3D((2, 1, 2), ((0, 1), (0, 0), (2, 1)), (1, 1, 1), activation=Activation.RELU),
        (2, 5, 4, 5, 2),
        Weights((2, 1, 3, 2, 5)),
    ),
    _case(
        "dilated_groups",
        Conv3D((1, 1, 1), ((0, 0), (1, 0), (0, 0)), (2, 1, 3), 2),
        (1, 4, 3, 5, 4),
        Weights((2, 2, 2, 2, 6)),
        Bias(6),
    ),
    _case(
        "run_time_weights",
        Conv3D((1, 1, 1), ((0, 0), (0, 0), (0, 0)), (1, 1, 1)),
        (1, 2, 3, 3, 2),
        Data((2, 2, 2, 2, 3)),
        Data((3,)),
    ),
    _case(
        "flat_axes",
        Conv3D((1, 2, 1), ((0, 0), (1, 1), (0, 0)), (1, 1, 1)),
        (1, 1, 4, 1, 3),
        Weights((1, 2, 1, 3, 11)),
        Bias(11),
    ),
    _transposed("double", (1, 3, 4, 5), (2, 2, 5, 6), stride=(2, 2)),
    _transposed(
        "overlapping",
        (2, 3, 4, 2),
        (3, 4, 2, 5),
        stride=(2, 2),
        padding=((1, 0), (1, 1)),
        activation=Activation.RELU6,
    ),
    _transposed("stride1", (1, 4, 3, 3), (3, 3, 3, 2), stride=(1, 1), padding=((1, 1), (1, 1))),
    _transposed(
        "output_padding", (1, 3, 3, 2), (2, 3, 2, 4), stride=(3, 2), padding=((0, -2), (-1, -1))
    ),
    _transposed(
        "dilated",
        (1, 3, 4, 2),
        (3, 2, 2, 3),
        stride=(2, 3),
        padding=((1, 2), (0, 1)),
        dilation=(2, 2),
    ),
    _transposed("groups", (1, 3, 3, 6), (2, 2, 3, 4), stride=(2, 2), groups=2),
    _transposed(
        "depthwise",
        (1, 3, 4, 7),
        (4, 4, 1, 7),
        stride=(2, 2),
        padding=((1, 1), (1, 1)),
        groups=7,
    ),
    _transposed("many_outputs", (1, 2, 3, 3), (2, 2, 3, 37), stride=(2, 1)),
    _transposed("vector", (1, 5, 3), (4, 3, 2), stride=(2,), padding=((1, 2),)),
    _transposed("volume", (1, 2, 3, 2, 3), (2, 3, 2, 3, 4), stride=(2, 1, 2)),
    _case(
        "run_time_weights",
        ConvTranspose((2, 2), ((0, 0), (0, 0)), (1, 1)),
        (1, 2, 3, 2),
        Data((2, 2, 2, 3)),
    ),
)
CASES = (
    *_CASES,
    *onnx_cases(_CASES, "double", "overlapping", "groups", "depthwise", "vector"),
    *wide_cases(_CASES, "double", "overlapping", "groups", "depthwise"),
)
